package guest

import (
	"encoding/json"
	"testing"

	"github.com/space-sandbox/space/internal/sandbox"
)

// FuzzFileList feeds pages to the check: what passes is whole, and can be said again.
func FuzzFileList(f *testing.F) {
	f.Add([]byte(`{"items":[{"path":"/x","type":"file","mode":"0644","size_bytes":1,"modified_at":"2026-01-02T03:04:05Z"}],"next_cursor":"YQ"}`))
	f.Add([]byte(`{"items":[{"path":"/l","type":"symlink","mode":"0777","symlink_target":"x","modified_at":"2026-01-02T03:04:05Z","xattrs_b64":{"user.x":"AA=="}}]}`))
	f.Add([]byte(`{"items":null}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		page, err := checkList(raw)
		if err != nil {
			if sandbox.CodeOf(err) != sandbox.CodeGuestFault {
				t.Fatal(err)
			}
			return
		}
		again, err := json.Marshal(page)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := checkList(again); err != nil {
			t.Fatalf("%s: %v", again, err)
		}
	})
}

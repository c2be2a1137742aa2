package main

import (
	"slices"
	"testing"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/client"
	"github.com/space-sandbox/space/internal/httpapi/httpapitest"
)

// TestCompleteCommands: commands that take a session get those of the newest sandboxes.
func TestCompleteCommands(t *testing.T) {
	t.Parallel()
	s := httpapitest.Serve(t)
	c := client.New(s.URL, httpapitest.AdminKey)
	if _, err := c.CreateSandbox(t.Context(), apiv1.CreateSandbox{Template: "mini", Name: "box"}); err != nil {
		t.Fatal(err)
	}
	made, err := c.CreateCommand(t.Context(), "box", apiv1.CreateCommand{Argv: []string{"true"}})
	if err != nil {
		t.Fatal(err)
	}
	names := completed("logs COMMAND")
	if got := names(t.Context(), c, nil); !slices.Equal(got, []string{made.ID}) {
		t.Errorf("%q, want %s", got, made.ID)
	}
	if got := names(t.Context(), c, []string{made.ID}); got != nil {
		t.Errorf("a second argument: %q", got)
	}
	if completed("cp FROM TO") != nil || completed("ls") != nil {
		t.Error("what the API does not know is completed from it")
	}
}

package doctor

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/space-sandbox/space/internal/datadir"
)

// Bounds of a bundle.
const (
	maxBundleLog     = 8 << 20 // the end of each log file
	maxBundleRecord  = 64 << 10
	maxBundleRecords = 1000
	maxSecretFile    = 4 << 10
)

// BundleFile is one file of a bundle. JSON documents have names that end in .json.
type BundleFile struct {
	Name string
	Data []byte
}

// Bundle is what a bug report needs.
type Bundle struct {
	DataDir string
	Version string
	Results []Check
	// Logs are files whose ends are added.
	Logs []string
	// Files are what the caller found out itself, such as answers of the API.
	Files []BundleFile
	// Secrets are values that must not appear, besides those of the installation.
	Secrets []string
}

const bundleReadme = `This is what space doctor --bundle collected for a bug report: results of the checks, versions, records of machines,
operations, and the ends of logs where they were given. Keys, tokens, environments, metadata and arguments of commands
were taken out. Names of sandboxes, templates and hosts were not: look through it before you send it.
`

// Write writes the bundle as a tar.gz. Every file goes through the redaction.
func (b *Bundle) Write(w io.Writer) error {
	files := append([]BundleFile{{"README.txt", []byte(bundleReadme)}}, b.Files...)
	var checks bytes.Buffer
	if err := WriteJSON(&checks, b.Results); err != nil {
		return err
	}
	files = append(files, BundleFile{"doctor.json", checks.Bytes()}, BundleFile{"version.txt", b.version()})
	files = append(files, b.records()...)
	for i, name := range b.Logs {
		data, err := tail(name, maxBundleLog)
		if err != nil {
			return err
		}
		files = append(files, BundleFile{fmt.Sprintf("logs/%d-%s", i+1, filepath.Base(name)), data})
	}
	secrets, err := b.installationSecrets()
	if err != nil {
		return err
	}
	return writeArchive(w, files, newRedactor(append(secrets, b.Secrets...)))
}

func (b *Bundle) version() []byte {
	var uts unix.Utsname
	kernel := "unknown"
	if unix.Uname(&uts) == nil {
		kernel = unix.ByteSliceToString(uts.Release[:]) + " " + unix.ByteSliceToString(uts.Machine[:])
	}
	release := "unknown"
	if data, err := os.ReadFile("/etc/os-release"); err == nil {
		for line := range strings.Lines(string(data)) {
			if name, ok := strings.CutPrefix(line, "PRETTY_NAME="); ok {
				release = strings.Trim(strings.TrimSpace(name), `"`)
			}
		}
	}
	return fmt.Appendf(nil, "space %s\n%s %s/%s\nkernel %s\n%s\nat %s\n", b.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH, kernel,
		release, time.Now().UTC().Format(time.RFC3339))
}

// records are the installation's own files that hold no data of users. What cannot be read is named, not an error: a
// bundle is made when things are broken.
func (b *Bundle) records() []BundleFile {
	dir := &datadir.Dir{Path: b.DataDir}
	var out []BundleFile
	add := func(name, from string) {
		data, err := head(from, maxBundleRecord)
		if err != nil {
			name, data = name+".error.txt", []byte(err.Error()+"\n")
		}
		out = append(out, BundleFile{name, data})
	}
	add("installation.json", dir.InstallationFile())
	add("guest/manifest.json", filepath.Join(dir.GuestDir(), "manifest.json"))
	entries, err := os.ReadDir(dir.MachinesDir())
	if err != nil {
		return append(out, BundleFile{"machines/error.txt", []byte(err.Error() + "\n")})
	}
	for _, e := range entries[:min(len(entries), maxBundleRecords)] {
		if e.Type().IsRegular() {
			add("machines/"+e.Name(), filepath.Join(dir.MachinesDir(), e.Name()))
		}
	}
	return out
}

// installationSecrets are the values of the key files. Files that do not exist or may not be read have nothing that the
// rest of the bundle could have been read from.
func (b *Bundle) installationSecrets() ([]string, error) {
	dir := &datadir.Dir{Path: b.DataDir}
	var out []string
	for _, name := range []string{dir.AdminKeyFile(), dir.AdminHashFile(), dir.SigningKeyFile()} {
		data, err := head(name, maxSecretFile)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			continue
		}
		if err != nil {
			return nil, err
		}
		out = append(out, string(data))
	}
	return out, nil
}

func head(name string, limit int64) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, limit))
}

// tail reads the last bytes of a file, from the beginning of a line: a secret that is cut in two would not be seen.
func tail(name string, limit int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	skip := max(info.Size()-limit, 0)
	data, err := io.ReadAll(io.NewSectionReader(f, skip, limit))
	if err != nil {
		return nil, err
	}
	if skip > 0 {
		_, data, _ = bytes.Cut(data, []byte("\n"))
	}
	return data, nil
}

func writeArchive(w io.Writer, files []BundleFile, r *redactor) error {
	zw := gzip.NewWriter(w)
	tw := tar.NewWriter(zw)
	now := time.Now().Truncate(time.Second)
	for _, f := range files {
		data := r.text(f.Data)
		if path.Ext(f.Name) == ".json" {
			data = r.json(f.Data)
		}
		if err := tw.WriteHeader(&tar.Header{Name: "space-bundle/" + f.Name, Mode: 0o600, Size: int64(len(data)), ModTime: now}); err != nil {
			return fmt.Errorf("bundle: %w", err)
		}
		if _, err := tw.Write(data); err != nil {
			return fmt.Errorf("bundle: %w", err)
		}
	}
	if err := errors.Join(tw.Close(), zw.Close()); err != nil {
		return fmt.Errorf("bundle: %w", err)
	}
	return nil
}

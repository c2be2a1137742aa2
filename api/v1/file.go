package apiv1

import "time"

// WrittenFile is the answer to PUT …/files: what is on the guest's disk now.
type WrittenFile struct {
	Path      string `json:"path"`
	SizeBytes int64  `json:"size_bytes"`
	SHA256    string `json:"sha256" doc:"64 hex digits"`
}

// Types of files.
const (
	FileTypeFile        = "file"
	FileTypeDirectory   = "directory"
	FileTypeSymlink     = "symlink"
	FileTypeFIFO        = "fifo"
	FileTypeSocket      = "socket"
	FileTypeCharDevice  = "char_device"
	FileTypeBlockDevice = "block_device"
)

// FileInfo describes one name in a sandbox's file system; links are not followed unless that was asked for. Bytes of
// a path that are not UTF-8 appear as U+FFFD.
type FileInfo struct {
	Path          string            `json:"path" doc:"Absolute"`
	Type          string            `json:"type" enum:"file,directory,symlink,fifo,socket,char_device,block_device"`
	SizeBytes     int64             `json:"size_bytes"`
	Mode          string            `json:"mode" doc:"Permissions, four octal digits" example:"0644"`
	UID           uint32            `json:"uid"`
	GID           uint32            `json:"gid"`
	Owner         string            `json:"owner" doc:"Name of the user, or its uid when it has none"`
	ModifiedAt    time.Time         `json:"modified_at"`
	SymlinkTarget *string           `json:"symlink_target" doc:"What a symlink holds; null for anything else"`
	XAttrs        map[string]string `json:"xattrs" doc:"Extended attributes whose values are text"`
	XAttrsB64     map[string]string `json:"xattrs_b64,omitempty" doc:"Those whose values are not, base64"`
}

// FileList is one page of the entries below a directory: each directory's in the order of their names' bytes, what is
// in a directory right behind it.
type FileList struct {
	Items      []FileInfo `json:"items"`
	NextCursor string     `json:"next_cursor,omitempty"`
}

// MakeDirectory is the body of POST …/files/mkdir.
type MakeDirectory struct {
	Path          string `json:"path" minLength:"1" maxLength:"4095" doc:"Absolute, or relative to the user's home"`
	Mode          string `json:"mode,omitempty" pattern:"^[0-7]{1,4}$" doc:"Permissions, octal; default 0755"`
	CreateParents bool   `json:"create_parents,omitempty" doc:"Create directories that are missing; one that exists already is no error then"`
}

// MoveFile is the body of POST …/files/move.
type MoveFile struct {
	From      string `json:"from" minLength:"1" maxLength:"4095" doc:"Absolute, or relative to the user's home"`
	To        string `json:"to" minLength:"1" maxLength:"4095" doc:"The new name itself, not a directory to put it into"`
	Overwrite bool   `json:"overwrite,omitempty" doc:"Replace what is at the new name: a file by a file, an empty directory by a directory"`
}

// UnpackedArchive is the answer to PUT …/files/archive.
type UnpackedArchive struct {
	Path      string `json:"path" doc:"The directory it was unpacked in"`
	Entries   int64  `json:"entries"`
	SizeBytes int64  `json:"size_bytes" doc:"Content of all files together"`
}

// Types of file events.
const (
	FileCreated  = "create"   // a name appeared, be it by a rename
	FileWritten  = "write"    // the content changed
	FileRemoved  = "remove"   // a name disappeared
	FileRenamed  = "rename"   // this name was given up for another; the other one's event is a create
	FileChmod    = "chmod"    // permissions, owner, times or attributes changed
	FileOverflow = "overflow" // events were lost: look at the directory anew
)

// FileEvent is the data of one event of GET …/files/watch.
type FileEvent struct {
	Type      string `json:"type" enum:"create,write,remove,rename,chmod,overflow"`
	Path      string `json:"path" doc:"Absolute"`
	Directory bool   `json:"directory,omitempty"`
}

// WrittenStdin is the answer to POST …/stdin.
type WrittenStdin struct {
	StdinBytes uint64 `json:"stdin_bytes" doc:"How many bytes were accepted in all"`
}

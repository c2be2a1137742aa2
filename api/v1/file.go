package apiv1

// WrittenFile is the answer to PUT …/files: what is on the guest's disk now.
type WrittenFile struct {
	Path      string `json:"path"`
	SizeBytes int64  `json:"size_bytes"`
	SHA256    string `json:"sha256" doc:"64 hex digits"`
}

// WrittenStdin is the answer to POST …/stdin.
type WrittenStdin struct {
	StdinBytes uint64 `json:"stdin_bytes" doc:"How many bytes were accepted in all"`
}

package apiv1

import "time"

// Template is a named initial file system with its boot configuration.
type Template struct {
	Name         string            `json:"name" example:"base"`
	Tags         []string          `json:"tags" nullable:"false" example:"latest"`
	Digest       string            `json:"digest" example:"sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"`
	State        string            `json:"state" enum:"ready"`
	SizeBytes    int64             `json:"size_bytes"`
	MinDiskMiB   int               `json:"min_disk_mib" doc:"The smallest disk a sandbox of it can have"`
	Env          map[string]string `json:"env"`
	User         string            `json:"user" doc:"Who runs commands by default"`
	Workdir      string            `json:"workdir" doc:"Where commands run by default; empty: the user's home"`
	Entrypoint   []string          `json:"entrypoint" nullable:"false"`
	StartCommand *string           `json:"start_command"`
	ReadyCommand *string           `json:"ready_command"`
	CreatedAt    time.Time         `json:"created_at"`
}

// ImportTemplate asks for a template to be made of an image in a registry.
type ImportTemplate struct {
	Name  string `json:"name" minLength:"1" maxLength:"256" example:"team/alpine:3.20" doc:"[namespace/]name[:tag]; a name that is in use moves to the new content"`
	Image string `json:"image" minLength:"1" maxLength:"512" example:"docker.io/library/alpine:3.20" doc:"The image for this host's architecture is taken; it must be readable without credentials"`
}

// TemplateLifecycle answers the import of a template.
type TemplateLifecycle struct {
	Operation Operation `json:"operation"`
	Template  *Template `json:"template,omitempty" doc:"When the operation has succeeded"`
}

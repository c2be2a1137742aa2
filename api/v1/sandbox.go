package apiv1

import "time"

// Sandbox is one isolated machine.
type Sandbox struct {
	ID           string            `json:"id" example:"k3v0q7c2m9x4b8n1z5w6"`
	Name         string            `json:"name,omitempty"`
	State        string            `json:"state" doc:"What was last observed" enum:"creating,running,pausing,paused,resuming,failed,deleting,deleted"`
	DesiredState string            `json:"desired_state" doc:"What the last accepted call wants" enum:"running,paused,deleted"`
	Reason       *string           `json:"reason" doc:"Why it failed, or stands still without having been paused (pool_full); else null"`
	ReasonDetail string            `json:"reason_detail,omitempty" doc:"What is known about that, such as the exit status of the VMM"`
	Template     TemplateRef       `json:"template"`
	Driver       string            `json:"driver" doc:"The virtual machine monitor in use"`
	Isolation    string            `json:"isolation" doc:"microvm/kvm, microvm/emulated or none; empty until it is known"`
	VCPUs        int               `json:"vcpus"`
	MemoryMiB    int               `json:"memory_mib"`
	DiskMiB      int               `json:"disk_mib"`
	CreatedAt    time.Time         `json:"created_at"`
	ReadyAt      *time.Time        `json:"ready_at" doc:"When it became ready to run commands; null before"`
	Metadata     map[string]string `json:"metadata"`
	Endpoints    Endpoints         `json:"endpoints"`
	Lease        *Lease            `json:"lease,omitempty"`
	OperationID  string            `json:"operation_id,omitempty" doc:"The operation under way, or else the first that waits"`
}

// TemplateRef says what a sandbox was made from: the name that was asked for and the content it stood for then.
type TemplateRef struct {
	Ref    string `json:"ref" example:"base:latest"`
	Digest string `json:"digest" example:"sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"`
}

// Endpoints says where a sandbox's data plane is.
type Endpoints struct {
	DataPlane string `json:"data_plane" example:"http://127.0.0.1:7071"`
}

// CreateSandbox is the body of POST /v1/sandboxes.
type CreateSandbox struct {
	Template  string            `json:"template" minLength:"1" maxLength:"256" doc:"Name, name:tag or digest of a template" example:"base"`
	Name      string            `json:"name,omitempty" maxLength:"63" doc:"A lower-case letter, then letters, digits and hyphens; unique among live sandboxes"`
	VCPUs     *int              `json:"vcpus,omitempty" minimum:"1" maximum:"32" doc:"Default 1"`
	MemoryMiB *int              `json:"memory_mib,omitempty" minimum:"128" maximum:"262144" doc:"Default 512"`
	DiskMiB   *int              `json:"disk_mib,omitempty" minimum:"64" maximum:"1048576" doc:"Default 4096"`
	Env       map[string]string `json:"env,omitempty" maxProperties:"1024" doc:"Environment of every command, above the template's"`
	Metadata  map[string]string `json:"metadata,omitempty" maxProperties:"64" doc:"Labels of your own; lists can be filtered by them"`
	Lease     *CreateLease      `json:"lease,omitempty" doc:"How long it runs; default: for ever"`
	Driver    string            `json:"driver,omitempty" enum:"firecracker,qemu,fake" doc:"Default: the node's default driver"`
}

// PatchSandbox is the body of PATCH /v1/sandboxes/{id}. Absent fields stay as they are; a null or empty name removes
// the name; metadata replaces all of it (null: none); a null lease removes the lease.
type PatchSandbox struct {
	Name     *string            `json:"name,omitempty" maxLength:"63"`
	Metadata *map[string]string `json:"metadata,omitempty" maxProperties:"64"`
	Lease    *PatchLease        `json:"lease,omitempty"`
}

// CreateLease asks for a lease.
type CreateLease struct {
	TTLSeconds float64 `json:"ttl_seconds" minimum:"1" maximum:"2592000" example:"3600" doc:"How long it lasts"`
	OnExpiry   string  `json:"on_expiry,omitempty" enum:"delete,pause" doc:"What happens at its end; default delete"`
}

// PatchLease changes a lease, or makes one.
type PatchLease struct {
	TTLSeconds float64 `json:"ttl_seconds" minimum:"1" maximum:"2592000" example:"3600"`
	Mode       string  `json:"mode,omitempty" enum:"set,extend" doc:"set (default): the lease begins anew with ttl_seconds; extend: ttl_seconds are added to what is left"`
	OnExpiry   string  `json:"on_expiry,omitempty" enum:"delete,pause" doc:"Default: as it was; delete for a new lease"`
}

// Lifecycle is the answer to a lifecycle call: the operation as it stands, and its sandbox.
type Lifecycle struct {
	Operation Operation `json:"operation"`
	Sandbox   Sandbox   `json:"sandbox"`
}

// Lease bounds how long a sandbox runs. Its time passes while the sandbox is running or failed; it stands still
// otherwise, and has remaining_seconds instead of expires_at then.
type Lease struct {
	TTLSeconds       float64    `json:"ttl_seconds" doc:"How long a lease lasts that begins anew"`
	OnExpiry         string     `json:"on_expiry" enum:"delete,pause" doc:"What happens at its end"`
	ExpiresAt        *time.Time `json:"expires_at,omitempty" doc:"While its time passes"`
	RemainingSeconds *float64   `json:"remaining_seconds,omitempty" doc:"While its time stands still"`
}

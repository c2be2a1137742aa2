package apiv1

// Node describes the machine SPACE runs on.
type Node struct {
	InstallationID string   `json:"installation_id"`
	Version        string   `json:"version"`
	Kernel         string   `json:"kernel"`
	Drivers        []Driver `json:"drivers" nullable:"false"`
	DefaultDriver  string   `json:"default_driver"`
	Pool           Pool     `json:"pool"`
	Capacity       Capacity `json:"capacity"`
	Sandboxes      int      `json:"sandboxes" doc:"Live sandboxes"`
	Warnings       []string `json:"warnings" nullable:"false"`
}

// Driver is a virtual machine monitor with the result of its probe.
type Driver struct {
	Name      string `json:"name"`
	Available bool   `json:"available"`
	Isolation string `json:"isolation"`
	Version   string `json:"version"`
	Reason    string `json:"reason" doc:"Why it is not available"`
}

// Pool is where disks are kept.
type Pool struct {
	Kind         string `json:"kind" doc:"reflink, loop-xfs or copy"`
	TotalBytes   int64  `json:"total_bytes"`
	FreeBytes    int64  `json:"free_bytes"`
	ReserveBytes int64  `json:"reserve_bytes" doc:"With less than that free, all sandboxes are paused until there is room"`
}

// Capacity is what the machine has.
type Capacity struct {
	CPUs            int   `json:"cpus"`
	MemoryBytes     int64 `json:"memory_bytes"`
	MemoryFreeBytes int64 `json:"memory_free_bytes"`
}

// Health is the answer of /healthz and /readyz.
type Health struct {
	Status  string `json:"status" enum:"ok,ready"`
	Version string `json:"version"`
}

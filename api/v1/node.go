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
	MaxSandboxes   int      `json:"max_sandboxes" doc:"How many sandboxes may be live at once, failed ones included; 0: no limit"`
	// Draining and OperationsUnderWay are for stopping in order.
	Draining           bool     `json:"draining" doc:"Creates and recoveries are refused"`
	OperationsUnderWay int      `json:"operations_under_way" doc:"Operations that are queued or running"`
	Warnings           []string `json:"warnings" nullable:"false"`
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

// DrainNode asks for a drain, or for its end.
type DrainNode struct {
	Drain bool `json:"drain" doc:"true: refuse creates and recoveries; false: take them again"`
}

// Drain says what stands in the way of stopping.
type Drain struct {
	Draining           bool `json:"draining"`
	OperationsUnderWay int  `json:"operations_under_way" doc:"Operations that are queued or running"`
	Sandboxes          int  `json:"sandboxes" doc:"Sandboxes that are not deleted; they stay"`
}

// Capacity is what the machine has.
type Capacity struct {
	CPUs            int   `json:"cpus"`
	MemoryBytes     int64 `json:"memory_bytes"`
	MemoryFreeBytes int64 `json:"memory_free_bytes"`
}

// Ledger compares what SPACE should have in the kernel and in its directories with what is there.
type Ledger struct {
	Kinds   map[string]LedgerKind `json:"kinds" doc:"By kind: process, uid, tap, namespace, nft_table, cgroup, mount, loop, socket, file, port"`
	Drift   int                   `json:"drift" doc:"Objects that are there and should not be, or should be and are not; 0 is right"`
	Objects []LedgerObject        `json:"objects" nullable:"false" doc:"What the drift is, at most 1000 of them"`
}

// LedgerKind counts the objects of one kind. While a sandbox is being made or removed, its objects count as expected as
// far as they exist.
type LedgerKind struct {
	Live     int `json:"live"`
	Expected int `json:"expected"`
}

// LedgerObject is one object that is there and should not be, or the other way round.
type LedgerObject struct {
	Kind      string `json:"kind"`
	Name      string `json:"name" doc:"For people"`
	SandboxID string `json:"sandbox_id,omitempty"`
	Live      bool   `json:"live"`
	Expected  bool   `json:"expected"`
}

// ReconcileNode asks for the removal of what nothing stands for.
type ReconcileNode struct {
	DryRun bool `json:"dry_run,omitempty" doc:"Only say what would be done"`
}

// Reconciled is what was done, or would be.
type Reconciled struct {
	DryRun  bool     `json:"dry_run"`
	Repairs []Repair `json:"repairs" nullable:"false" doc:"At most 1000 of them"`
}

// Repair is what was done about one object.
type Repair struct {
	LedgerObject
	Action string `json:"action" enum:"remove,report" doc:"report: it is not safe to remove it, or it cannot be made again"`
	Done   bool   `json:"done"`
	Reason string `json:"reason,omitempty" doc:"Why it is not done"`
}

// Health is the answer of /healthz and /readyz.
type Health struct {
	Status  string `json:"status" enum:"ok,ready"`
	Version string `json:"version"`
}

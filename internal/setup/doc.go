// Package setup makes a data directory ready: packages, users, a range of uids, the copy-on-write pool, the guest's
// kernel and initramfs, templates and the first key.
//
// Each step looks at what is there and adds what is missing, so setup may be run again at any time, also beside a
// running installation, and after having been killed at any point. What decides about the rest (id, uid range, kind of
// pool) is written to setup.json as soon as it is decided; installation.json, which says that all is there, comes last.
package setup

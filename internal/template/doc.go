// Package template makes the templates that come with SPACE: a Debian root file system by mmdebstrap, then an ext4 image
// of it by mke2fs, without mounting anything on the host.
//
// The image is as small as its content; node makes each sandbox's disk larger and the guest grows the file system
// online, up to 1 TiB.
package template

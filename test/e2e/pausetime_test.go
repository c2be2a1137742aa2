//go:build realvm && !long

package e2e

import "time"

// pauseTime is how long a sandbox is paused under its sessions.
const pauseTime = 5 * time.Second

//go:build realvm && long

package e2e

import "time"

// pauseTime is longer than any connection into a guest that stands still is kept.
const pauseTime = 70 * time.Second

// Package sandbox is the domain of SPACE: ids, specifications, states, the table of verbs, and the error form that
// every part speaks. It does no I/O and imports nothing of the project.
package sandbox

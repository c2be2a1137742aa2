// Package apiv1 is the JSON of API v1: one Go type for each object that crosses the wire, used by the server
// (internal/httpapi) and by the Go SDK (client). Times are RFC 3339 in UTC, sizes are in bytes (_bytes) or MiB (_mib),
// durations in seconds (_seconds) unless the name says ms. A pointer without omitempty is written as null when it is
// nil; a field with omitempty is left out.
package apiv1

// List is one page of a list. NextCursor is empty on the last page; Total is there when count=true was asked.
type List[T any] struct {
	Items      []T    `json:"items" nullable:"false"`
	NextCursor string `json:"next_cursor,omitempty" doc:"Give this as cursor to get the next page; absent on the last page."`
	Total      *int   `json:"total,omitempty" doc:"How many there are in all; only with count=true."`
}

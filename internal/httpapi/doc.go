// Package httpapi is API v1 over HTTP: routes, authentication, strict reading of requests, the error form, and the
// OpenAPI description made from the same Go types (api/v1). It decides nothing about sandboxes: every call goes to a
// Control.
package httpapi

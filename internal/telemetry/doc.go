// Package telemetry is what all processes share for being watched: one trace id that goes with a request through
// control, node and gateway into every log line, and metrics in the Prometheus form.
//
// There is no exporter for spans: the trace id in the logs, and the steps and times of operations, are the trace.
package telemetry

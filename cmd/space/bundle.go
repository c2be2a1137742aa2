package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/space-sandbox/space/client"
	"github.com/space-sandbox/space/internal/doctor"
)

// bundlePatience is how long the API may take to answer what goes into a bundle.
const bundlePatience = 20 * time.Second

// writeBundle writes what a bug report needs to a new file. An API that does not answer is part of the report.
func writeBundle(ctx context.Context, cli *cli, name string, logs []string, results []doctor.Check) (err error) {
	c := cli.client()
	b := doctor.Bundle{DataDir: cli.dataDirFlag, Version: version, Results: results, Logs: logs, Files: askAPI(ctx, c), Secrets: []string{c.Key}}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("bundle: %w", err)
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			err = errors.Join(err, os.Remove(name)) // no half bundles
		}
	}()
	return b.Write(f)
}

// askAPI collects what the API knows; an answer that fails is replaced by its error.
func askAPI(ctx context.Context, c *client.Client) []doctor.BundleFile {
	ctx, cancel := context.WithTimeout(ctx, bundlePatience)
	defer cancel()
	var files []doctor.BundleFile
	newest := client.Page{Limit: allPages}
	for _, q := range []struct {
		name string
		ask  func() (any, error)
	}{
		{"node", func() (any, error) { return c.Node(ctx) }},
		{"operations", func() (any, error) { return c.ListOperations(ctx, client.OperationQuery{Page: newest}) }},
		{"sandboxes", func() (any, error) { return c.ListSandboxes(ctx, client.SandboxQuery{Page: newest}) }},
		{"templates", func() (any, error) { return c.ListTemplates(ctx, newest) }},
	} {
		answer, err := q.ask()
		var data []byte
		if err == nil {
			data, err = json.Marshal(answer)
		}
		if err != nil {
			files = append(files, doctor.BundleFile{Name: "api/" + q.name + ".error.txt", Data: []byte(describe(err) + "\n")})
			continue
		}
		files = append(files, doctor.BundleFile{Name: "api/" + q.name + ".json", Data: data})
	}
	metrics, err := c.Metrics(ctx)
	if err != nil {
		return append(files, doctor.BundleFile{Name: "api/metrics.error.txt", Data: []byte(describe(err) + "\n")})
	}
	return append(files, doctor.BundleFile{Name: "api/metrics.txt", Data: metrics})
}

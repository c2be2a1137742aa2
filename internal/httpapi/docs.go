package httpapi

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"maps"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/space-sandbox/space/internal/auth"
)

//go:embed docs.html
var docsHTML string

// docsPage renders the human documentation from the description. It loads nothing from anywhere.
func docsPage(spec *huma.OpenAPI) ([]byte, error) {
	page, err := template.New("docs").Parse(docsHTML)
	if err != nil {
		return nil, fmt.Errorf("docs page: %w", err)
	}
	var buf bytes.Buffer
	if err := page.Execute(&buf, docsData(spec)); err != nil {
		return nil, fmt.Errorf("docs page: %w", err)
	}
	return buf.Bytes(), nil
}

type docsModel struct {
	Title, Version, Description string
	Groups                      []docsGroup
	Schemas                     []docsSchema
}

type docsGroup struct {
	Name   string
	Routes []docsRoute
}

type docsRoute struct {
	Method, Path, Summary, Description string
	Open                               bool
	Token                              string // what is said of sandbox tokens
	Params                             []docsField
	Body                               string // name of a schema, or a media type
	Answers                            []docsAnswer
}

type docsAnswer struct{ Status, Description, Body string }

type docsSchema struct {
	Name, Description string
	Fields            []docsField
}

type docsField struct {
	Name, Type, Bounds, Doc string
	Required                bool
}

func docsData(spec *huma.OpenAPI) docsModel {
	m := docsModel{Title: spec.Info.Title, Version: spec.Info.Version, Description: spec.Info.Description}
	for _, path := range slices.Sorted(maps.Keys(spec.Paths)) {
		item := spec.Paths[path]
		for _, op := range []*huma.Operation{item.Get, item.Post, item.Put, item.Patch, item.Delete} {
			if op == nil {
				continue
			}
			tag := op.Tags[0]
			i := slices.IndexFunc(m.Groups, func(g docsGroup) bool { return g.Name == tag })
			if i < 0 {
				m.Groups = append(m.Groups, docsGroup{Name: tag})
				i = len(m.Groups) - 1
			}
			m.Groups[i].Routes = append(m.Groups[i].Routes, docsRouteOf(op))
		}
	}
	slices.SortFunc(m.Groups, func(a, b docsGroup) int { return strings.Compare(a.Name, b.Name) })
	schemas := spec.Components.Schemas.Map()
	for _, name := range slices.Sorted(maps.Keys(schemas)) {
		m.Schemas = append(m.Schemas, docsSchemaOf(name, schemas[name]))
	}
	return m
}

func docsRouteOf(op *huma.Operation) docsRoute {
	r := docsRoute{Method: op.Method, Path: op.Path, Summary: op.Summary, Description: op.Description, Open: op.Metadata[metaOpen] == true}
	if scope, ok := op.Metadata[metaToken].(auth.Scope); ok {
		r.Token = "Open to sandbox tokens."
		if scope != anyScope {
			r.Token = fmt.Sprintf("Open to sandbox tokens with the scope %s.", scope)
		}
	}
	for _, p := range op.Parameters {
		f := docsFieldOf(p.Name, p.Schema, p.Required)
		f.Type = p.In + ", " + f.Type
		f.Doc = p.Description
		r.Params = append(r.Params, f)
	}
	if op.RequestBody != nil {
		r.Body = docsContent(op.RequestBody.Content)
	}
	for _, status := range slices.Sorted(maps.Keys(op.Responses)) {
		a := op.Responses[status]
		r.Answers = append(r.Answers, docsAnswer{Status: status, Description: a.Description, Body: docsContent(a.Content)})
	}
	return r
}

func docsContent(content map[string]*huma.MediaType) string {
	if len(content) == 0 {
		return ""
	}
	first := slices.Min(slices.Collect(maps.Keys(content)))
	if s := content[first].Schema; s != nil && s.Ref != "" {
		return docsType(s)
	}
	return first
}

func docsSchemaOf(name string, s *huma.Schema) docsSchema {
	out := docsSchema{Name: name, Description: s.Description}
	for _, field := range slices.Sorted(maps.Keys(s.Properties)) {
		out.Fields = append(out.Fields, docsFieldOf(field, s.Properties[field], slices.Contains(s.Required, field)))
	}
	return out
}

func docsFieldOf(name string, s *huma.Schema, required bool) docsField {
	f := docsField{Name: name, Required: required}
	if s == nil {
		return f
	}
	f.Type, f.Doc, f.Bounds = docsType(s), s.Description, docsBounds(s)
	return f
}

func docsType(s *huma.Schema) string {
	name := s.Type
	switch {
	case s.Ref != "":
		name = strings.TrimPrefix(s.Ref, schemaPrefix)
	case len(s.OneOf) > 0:
		parts := make([]string, len(s.OneOf))
		for i, one := range s.OneOf {
			parts[i] = docsType(one)
		}
		name = strings.Join(parts, " or ")
	case s.Type == huma.TypeArray:
		name = "list of " + docsType(s.Items)
	case s.Type == huma.TypeObject:
		if extra, ok := s.AdditionalProperties.(*huma.Schema); ok {
			name = "map of " + docsType(extra)
		}
	case s.Format == "date-time":
		name = "time"
	}
	if s.Nullable {
		name += " or null"
	}
	return name
}

func docsBounds(s *huma.Schema) string {
	var parts []string
	if len(s.Enum) > 0 {
		parts = append(parts, "one of "+strings.Trim(fmt.Sprint(s.Enum), "[]"))
	}
	bound := func(label string, v any) { parts = append(parts, fmt.Sprintf("%s %v", label, v)) }
	if s.Minimum != nil {
		bound("at least", *s.Minimum)
	}
	if s.ExclusiveMinimum != nil {
		bound("more than", *s.ExclusiveMinimum)
	}
	if s.Maximum != nil {
		bound("at most", int64(*s.Maximum))
	}
	if s.MaxLength != nil {
		bound("length at most", *s.MaxLength)
	}
	if s.MaxProperties != nil {
		bound("entries at most", *s.MaxProperties)
	}
	if s.Default != nil {
		if text, err := json.Marshal(s.Default); err == nil {
			bound("default", string(text))
		}
	}
	return strings.Join(parts, ", ")
}

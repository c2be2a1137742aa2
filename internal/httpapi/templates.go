package httpapi

import (
	"cmp"
	"context"
	"encoding/base64"
	"net/http"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/wire"
)

const tagTemplates = "Templates"

func (s *server) addTemplates() {
	huma.Register(s.api, huma.Operation{
		OperationID: "list-templates", Method: http.MethodGet, Path: "/v1/templates", Tags: []string{tagTemplates},
		Summary: "List templates", Responses: errorResponses(),
	}, s.listTemplates)
	huma.Register(s.api, huma.Operation{
		OperationID: "get-template", Method: http.MethodGet, Path: "/v1/templates/{ref}", Tags: []string{tagTemplates},
		Summary: "Get a template", Responses: errorResponses(), Metadata: map[string]any{metaRest: true},
	}, s.getTemplate)
	huma.Register(s.api, huma.Operation{
		OperationID: "delete-template", Method: http.MethodDelete, Path: "/v1/templates/{ref}", Tags: []string{tagTemplates},
		Summary: "Delete a template", DefaultStatus: http.StatusNoContent, Responses: errorResponses(), Metadata: map[string]any{metaRest: true},
		Description: "A name is taken away; the content goes with its last name, or when it is named by its digest, unless a live sandbox was made from it.",
	}, s.deleteTemplate)
	s.addImport()
}

type templatePath struct {
	Ref string `path:"ref" maxLength:"256" doc:"name, name:tag or digest; a slash in a name may be escaped or not" example:"base:latest"`
}

type templateOutput struct{ Body apiv1.Template }

func (s *server) getTemplate(ctx context.Context, in *templatePath) (*templateOutput, error) {
	t, err := s.Control.GetTemplate(ctx, in.Ref)
	if err != nil {
		return nil, s.refused(ctx, "get template", err)
	}
	return &templateOutput{Body: wire.Template(t, nameIn(t, in.Ref))}, nil
}

func (s *server) deleteTemplate(ctx context.Context, in *templatePath) (*struct{}, error) {
	if err := s.Control.DeleteTemplate(ctx, in.Ref); err != nil {
		return nil, s.refused(ctx, "delete template", err)
	}
	return &struct{}{}, nil
}

// nameIn is the name by which a template was asked for; asked by digest, its first one.
func nameIn(t sandbox.Template, ref string) string {
	names := namesOf(t)
	if name, _ := wire.SplitTag(ref); slices.Contains(names, name) {
		return name
	}
	return names[0]
}

// namesOf lists a template's names without tags; one that has lost its last name has the name "".
func namesOf(t sandbox.Template) []string {
	var names []string
	for _, full := range t.Names {
		if name, _ := wire.SplitTag(full); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if names == nil {
		return []string{""}
	}
	return names
}

type templateListOutput struct {
	Body apiv1.List[apiv1.Template]
}

// listTemplates shows each name of each content as one item.
func (s *server) listTemplates(ctx context.Context, in *PageParams) (*templateListOutput, error) {
	all, err := s.Control.ListTemplates(ctx)
	if err != nil {
		return nil, s.refused(ctx, "list templates", err)
	}
	items := []apiv1.Template{}
	for _, t := range all {
		for _, name := range namesOf(t) {
			items = append(items, wire.Template(t, name))
		}
	}
	slices.SortFunc(items, func(a, b apiv1.Template) int {
		return cmp.Or(b.CreatedAt.Compare(a.CreatedAt), strings.Compare(a.Name, b.Name), strings.Compare(a.Digest, b.Digest))
	})
	if in.Order == "asc" {
		slices.Reverse(items)
	}
	body, err := templatePage(items, in)
	if err != nil {
		return nil, s.refused(ctx, "list templates", err)
	}
	return &templateListOutput{Body: body}, nil
}

// templatePage cuts one page out of the whole sorted list, which is short. The cursor names the last item before it.
func templatePage(items []apiv1.Template, in *PageParams) (apiv1.List[apiv1.Template], error) {
	out := apiv1.List[apiv1.Template]{Items: items}
	if in.Count {
		total := len(items)
		out.Total = &total
	}
	if in.Cursor != "" {
		i := slices.IndexFunc(items, func(t apiv1.Template) bool { return templateCursor(t) == in.Cursor })
		if i < 0 {
			return out, invalid(sandbox.FieldError{Field: "cursor", Message: "is not from this list, or the list has changed"})
		}
		out.Items = items[i+1:]
	}
	if len(out.Items) > in.Limit {
		out.Items = out.Items[:in.Limit]
		out.NextCursor = templateCursor(out.Items[in.Limit-1])
	}
	return out, nil
}

func templateCursor(t apiv1.Template) string {
	return base64.RawURLEncoding.EncodeToString([]byte(t.Digest + " " + t.Name))
}

package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"

	"github.com/space-sandbox/space/internal/sandbox"
)

// maxDepth bounds how deep a body may be nested; nothing in API v1 comes near.
const maxDepth = 32

// checkJSON refuses a body that encoding/json would read in a lenient way: text that is not UTF-8, lone surrogates,
// duplicate keys, keys in another case, more than one value, numbers out of range; then unknown and missing fields of
// the schema. Types and bounds are left to huma. A nil schema is an object without fields.
func checkJSON(data []byte, schema *huma.Schema, registry huma.Registry) error {
	if i := invalidUTF8(data); i >= 0 {
		return malformed(fmt.Sprintf("it is not UTF-8 at byte %d", i))
	}
	var whole json.RawMessage
	if err := json.Unmarshal(data, &whole); err != nil {
		return malformed(err.Error())
	}
	if i := loneSurrogate(data); i >= 0 {
		return malformed(fmt.Sprintf("it has half of a surrogate pair at byte %d", i))
	}
	if whole = bytes.TrimLeft(whole, " \t\r\n"); whole[0] != '{' {
		return malformed("it is not an object")
	}
	c := &jsonChecker{dec: json.NewDecoder(bytes.NewReader(data)), registry: registry}
	c.dec.UseNumber()
	if schema == nil {
		schema = &huma.Schema{Type: huma.TypeObject, AdditionalProperties: false}
	}
	if err := c.value("", schema, 0); err != nil {
		return malformed(err.Error())
	}
	return c.refusal()
}

func malformed(cause string) error {
	return &sandbox.Error{Code: sandbox.CodeMalformedBody, Message: "the body is not valid JSON", Cause: cause,
		Remedy: "send one JSON object in UTF-8"}
}

type jsonChecker struct {
	dec      *json.Decoder
	registry huma.Registry
	unknown  []sandbox.FieldError
	wrong    []sandbox.FieldError
}

// refusal is the error for what was found, nil for nothing.
func (c *jsonChecker) refusal() error {
	if len(c.unknown) == 0 {
		if len(c.wrong) == 0 {
			return nil
		}
		return invalid(c.wrong...)
	}
	e := invalid(c.unknown...)
	e.Code = sandbox.CodeUnknownField
	e.Message = "the request has fields that this version does not know"
	e.Remedy = "leave them out; /docs has what this version knows"
	e.Fields = append(e.Fields, c.wrong...)
	return e
}

// value reads one value. schema is nil below something unknown or of another type.
func (c *jsonChecker) value(path string, schema *huma.Schema, depth int) error {
	if depth > maxDepth {
		return errors.New("it is nested too deep")
	}
	for schema != nil && schema.Ref != "" {
		schema = c.registry.SchemaFromRef(schema.Ref)
	}
	token, err := c.dec.Token()
	if err != nil {
		return err
	}
	switch t := token.(type) {
	case json.Delim:
		if t == '{' {
			return c.object(path, schema, depth)
		}
		return c.array(path, schema, depth)
	case json.Number:
		if f, err := strconv.ParseFloat(t.String(), 64); err != nil || math.IsInf(f, 0) {
			c.wrong = append(c.wrong, sandbox.FieldError{Field: path, Message: "the number is out of range"})
		}
	}
	return nil
}

func (c *jsonChecker) object(path string, schema *huma.Schema, depth int) error {
	if schema != nil && schema.Type != huma.TypeObject {
		schema = nil
	}
	seen := map[string]bool{}
	for c.dec.More() {
		token, err := c.dec.Token()
		if err != nil {
			return err
		}
		key, _ := token.(string) // the decoder lets nothing else be a key
		field := join(path, key)
		if seen[key] {
			return fmt.Errorf("the key %q occurs twice", field)
		}
		seen[key] = true
		if err := c.value(field, c.property(field, key, schema), depth+1); err != nil {
			return err
		}
	}
	if schema != nil {
		for _, name := range schema.Required {
			if !seen[name] {
				c.wrong = append(c.wrong, sandbox.FieldError{Field: join(path, name), Message: "is required"})
			}
		}
	}
	_, err := c.dec.Token() // the closing brace
	return err
}

// property finds the schema of one key and notes an unknown one.
func (c *jsonChecker) property(field, key string, schema *huma.Schema) *huma.Schema {
	if schema == nil {
		return nil
	}
	if p, ok := schema.Properties[key]; ok {
		return p
	}
	if extra, ok := schema.AdditionalProperties.(*huma.Schema); ok {
		return extra
	}
	c.unknown = append(c.unknown, sandbox.FieldError{Field: field, Message: "unknown field"})
	return nil
}

func (c *jsonChecker) array(path string, schema *huma.Schema, depth int) error {
	var items *huma.Schema
	if schema != nil && schema.Type == huma.TypeArray {
		items = schema.Items
	}
	for i := 0; c.dec.More(); i++ {
		if err := c.value(path+"["+strconv.Itoa(i)+"]", items, depth+1); err != nil {
			return err
		}
	}
	_, err := c.dec.Token() // the closing bracket
	return err
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// invalidUTF8 returns where data stops being UTF-8, -1 when it never does.
func invalidUTF8(data []byte) int {
	for i := 0; i < len(data); {
		r, n := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
	return -1
}

// loneSurrogate finds a \u escape of half a surrogate pair in valid JSON, which encoding/json would replace silently.
// In valid JSON a backslash is always inside a string.
func loneSurrogate(data []byte) int {
	for i := 0; i < len(data); i++ {
		if data[i] != '\\' {
			continue
		}
		i++ // what is escaped
		if data[i] != 'u' {
			continue
		}
		switch unit := hex4(data[i+1:]); {
		case unit >= 0xdc00 && unit < 0xe000:
			return i - 1
		case unit >= 0xd800 && unit < 0xdc00:
			rest := data[i+5:]
			if len(rest) < 6 || !slices.Equal(rest[:2], []byte(`\u`)) {
				return i - 1
			}
			if low := hex4(rest[2:]); low < 0xdc00 || low >= 0xe000 {
				return i - 1
			}
			i += 6
		}
		i += 4
	}
	return -1
}

func hex4(b []byte) uint64 {
	n, err := strconv.ParseUint(string(b[:4]), 16, 16)
	if err != nil {
		return 0 // not in valid JSON
	}
	return n
}

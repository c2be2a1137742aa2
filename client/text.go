package client

import (
	"fmt"
	"reflect"
	"strings"
	"unicode/utf8"
)

// checkText refuses a body with a string that is not UTF-8: encoding/json would send another one in its place. path is
// where v is.
func checkText(v reflect.Value, path string) error {
	switch v.Kind() {
	case reflect.String:
		if !utf8.ValidString(v.String()) {
			return fmt.Errorf("%s is not UTF-8: JSON carries only text; bytes go through standard input or a file", path)
		}
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			return checkText(v.Elem(), path)
		}
	case reflect.Slice, reflect.Array:
		for n := 0; v.Type().Elem().Kind() != reflect.Uint8 && n < v.Len(); n++ {
			if err := checkText(v.Index(n), fmt.Sprintf("%s[%d]", path, n)); err != nil {
				return err
			}
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			at := fmt.Sprintf("%s[%q]", path, key)
			if err := checkText(key, "the name "+at); err != nil {
				return err
			}
			if err := checkText(v.MapIndex(key), at); err != nil {
				return err
			}
		}
	case reflect.Struct:
		for n := range v.NumField() {
			field := v.Type().Field(n)
			if !field.IsExported() {
				continue
			}
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if err := checkText(v.Field(n), strings.TrimPrefix(path+"."+name, ".")); err != nil {
				return err
			}
		}
	default: // numbers and flags
	}
	return nil
}

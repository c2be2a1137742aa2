package httpapi

// OpenAPIYAML is the description of the API as api/openapi.yaml has it.
func OpenAPIYAML() ([]byte, error) {
	return newServer(Config{}).api.OpenAPI().YAML()
}

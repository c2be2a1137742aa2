package agent

import (
	"context"

	"connectrpc.com/connect"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	"github.com/space-sandbox/space/api/proto/agent/v1/agentv1connect"
)

// maxRequestBytes bounds one message to the agent: a process specification with a full environment, or one write to
// standard input.
const maxRequestBytes = 4 << 20

// service is the Connect side of a Server.
type service struct {
	agentv1connect.UnimplementedAgentServiceHandler
	server *Server
}

func (s *service) Hello(context.Context, *connect.Request[agentv1.HelloRequest]) (*connect.Response[agentv1.HelloResponse], error) {
	res := &agentv1.HelloResponse{Version: s.server.cfg.Version, BootId: s.server.bootID}
	for _, st := range s.server.cfg.Stages {
		res.Stages = append(res.Stages, &agentv1.Stage{Name: st.Name, Ms: float64(st.Took.Microseconds()) / 1000})
	}
	return connect.NewResponse(res), nil
}

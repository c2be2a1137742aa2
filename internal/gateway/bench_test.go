package gateway

import (
	"fmt"
	"io"
	"testing"

	"connectrpc.com/connect"

	gatewayv1 "github.com/space-sandbox/space/api/proto/gateway/v1"
	apiv1 "github.com/space-sandbox/space/api/v1"
)

// BenchmarkOutput is how fast a command's output reaches a client: agent, gateway and client in one process.
func BenchmarkOutput(b *testing.B) {
	const size = 64 << 20
	for name, read := range map[string]func(*command) (int64, error){
		"websocket": func(c *command) (int64, error) {
			ws := c.attach("")
			ws.conn.SetReadLimit(-1)
			n := int64(0)
			for ws.step() {
				n += int64(ws.out[1].Len())
				ws.out[1].Reset()
			}
			return n, nil
		},
		"plain": func(c *command) (int64, error) {
			res := c.w.get("/v1/commands/" + string(c.id) + "/output?follow=true&token=" + c.token)
			defer res.Body.Close()
			return io.Copy(io.Discard, res.Body)
		},
	} {
		b.Run(name, func(b *testing.B) {
			w := newWorld(b)
			box := w.boot(w.newBox())
			w.configure(box)
			b.SetBytes(size)
			for b.Loop() {
				n, err := read(w.shell(box, fmt.Sprintf("exec head -c %d /dev/zero", size), false))
				if err != nil || n != size {
					b.Fatalf("%d bytes, %v", n, err)
				}
			}
		})
	}
}

// BenchmarkCommand is one small command: create, attach, exit.
func BenchmarkCommand(b *testing.B) {
	w := newWorld(b)
	box := w.boot(w.newBox())
	w.configure(box)
	for b.Loop() {
		ws := w.shell(box, ":", false).attach("")
		if closed := ws.rest(); closed.Code != apiv1.CloseExit {
			b.Fatal(closed)
		}
	}
}

// BenchmarkAwaitReady is the gateway's own part of a create when the agent listens already.
func BenchmarkAwaitReady(b *testing.B) {
	w := newWorld(b)
	box := w.boot(w.newBox())
	for b.Loop() {
		_, err := w.rpc().AwaitReady(b.Context(), connect.NewRequest(&gatewayv1.AwaitReadyRequest{SandboxId: box.route.SandboxId,
			Generation: 1, AgentToken: box.route.AgentToken, Hostname: "box"}))
		if err != nil {
			b.Fatal(err)
		}
	}
}

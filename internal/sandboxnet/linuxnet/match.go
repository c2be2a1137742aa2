package linuxnet

import (
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// register holds the one value that a match looks at; no rule compares two.
const register = 1

// Loads: what a match looks at.

func link(offset, length uint32) []expr.Any { return payload(expr.PayloadBaseLLHeader, offset, length) }

func header(offset, length uint32) []expr.Any {
	return payload(expr.PayloadBaseNetworkHeader, offset, length)
}

func transport(offset, length uint32) []expr.Any {
	return payload(expr.PayloadBaseTransportHeader, offset, length)
}

func payload(base expr.PayloadBase, offset, length uint32) []expr.Any {
	return []expr.Any{&expr.Payload{DestRegister: register, Base: base, Offset: offset, Len: length}}
}

func meta(key expr.MetaKey) []expr.Any { return []expr.Any{&expr.Meta{Key: key, Register: register}} }

// masked keeps only the bits of mask.
func masked(load []expr.Any, mask []byte) []expr.Any {
	return append(load, &expr.Bitwise{SourceRegister: register, DestRegister: register, Len: uint32(len(mask)),
		Mask: mask, Xor: make([]byte, len(mask))})
}

// Comparisons: a rule goes on when they hold.

func equals(load []expr.Any, value []byte) []expr.Any {
	return append(load, &expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: value})
}

func differs(load []expr.Any, value []byte) []expr.Any {
	return append(load, &expr.Cmp{Op: expr.CmpOpNeq, Register: register, Data: value})
}

func protocol(number byte) []expr.Any { return equals(meta(expr.MetaKeyL4PROTO), []byte{number}) }

// tracked holds when the packet's connection is in one of the states.
func tracked(states uint32) []expr.Any {
	load := []expr.Any{&expr.Ct{Key: expr.CtKeySTATE, Register: register}}
	return differs(masked(load, binaryutil.NativeEndian.PutUint32(states)), make([]byte, 4))
}

// limit holds below the rate of refusals, or over it.
func limit(over bool) []expr.Any {
	return []expr.Any{&expr.Limit{Type: expr.LimitTypePkts, Rate: refusals, Unit: expr.LimitTimeSecond,
		Burst: refusalBurst, Over: over}}
}

func interfaceName(name string) []byte {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, name)
	return b
}

// Outcomes.

func accept() expr.Any { return &expr.Verdict{Kind: expr.VerdictAccept} }

func drop() expr.Any { return &expr.Verdict{Kind: expr.VerdictDrop} }

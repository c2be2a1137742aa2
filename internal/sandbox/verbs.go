package sandbox

import (
	"fmt"
	"strings"
)

// Verb is a lifecycle call on a sandbox that exists. Its name is also the kind of its operations.
type Verb string

// The verbs that have landed.
const (
	VerbPause   Verb = "pause"
	VerbResume  Verb = "resume"
	VerbRecover Verb = "recover"
	VerbDelete  Verb = "delete"
)

// Rule is what a verb does in a state.
type Rule string

// The rules.
const (
	// Moves: it is done, and the sandbox changes its state.
	Moves Rule = "moves"
	// Already: the sandbox is where the verb leads. The call succeeds and changes nothing.
	Already Rule = "already"
	// Waits: something else is under way. The call is accepted, and judged by the state in which that ends.
	Waits Rule = "waits"
	// Joins: the same verb is under way and never fails. The call is answered with its operation.
	Joins Rule = "joins"
	// Refused: 409 invalid_state, naming what helps.
	Refused Rule = "refused"
	// Gone: there is no such sandbox any more, 404.
	Gone Rule = "gone"
)

// Transition is one row's way through the states.
type Transition struct {
	Verb     Verb
	Via, End State // where a sandbox is while the verb is done, and after it
}

// Cell is what one verb does in one state.
type Cell struct {
	Rule Rule
	// Helps is the verb that helps where this one is refused; "" for none.
	Helps Verb
}

// Verbs returns all verbs with their ways, in the order of the documentation.
func Verbs() []Transition {
	return []Transition{
		{VerbPause, StatePausing, StatePaused},
		{VerbResume, StateResuming, StateRunning},
		{VerbRecover, StateResuming, StateRunning},
		{VerbDelete, StateDeleting, StateDeleted},
	}
}

// States returns all states, in the order of the documentation.
func States() []State {
	return []State{StateCreating, StateRunning, StatePausing, StatePaused, StateResuming, StateFailed, StateDeleting, StateDeleted}
}

// Way returns the states a verb leads through.
func (v Verb) Way() Transition {
	for _, t := range Verbs() {
		if t.Verb == v {
			return t
		}
	}
	return Transition{Verb: v}
}

// table is the one answer to what is legal when: a row for each state, in the columns of Verbs.
func table() map[State][4]Cell {
	moves, already, waits, joins, gone := Cell{Rule: Moves}, Cell{Rule: Already}, Cell{Rule: Waits}, Cell{Rule: Joins}, Cell{Rule: Gone}
	refused := func(helps Verb) Cell { return Cell{Refused, helps} }
	return map[State][4]Cell{
		//              pause                 resume                recover              delete
		StateCreating: {waits, waits, waits, moves},
		StateRunning:  {moves, already, already, moves},
		StatePausing:  {waits, waits, waits, moves},
		StatePaused:   {already, moves, refused(VerbResume), moves},
		StateResuming: {waits, waits, waits, moves},
		StateFailed:   {refused(VerbRecover), refused(VerbRecover), moves, moves},
		StateDeleting: {refused(""), refused(""), refused(""), joins},
		StateDeleted:  {gone, gone, gone, gone},
	}
}

// In returns what v does in a state, without regard to reasons.
func (v Verb) In(s State) Cell {
	for i, t := range Verbs() {
		if t.Verb == v {
			return table()[s][i]
		}
	}
	return Cell{Rule: Refused}
}

// On returns what v does with a sandbox as it is. Two cells of the table have a second half: a sandbox whose create
// failed has no disk to recover, and one that stands still for want of space is not paused as far as its user goes.
func (v Verb) On(s Sandbox) Cell {
	cell := v.In(s.State)
	switch {
	case s.State == StateFailed && !s.KeepsDisk() && v != VerbDelete:
		return Cell{Refused, VerbDelete}
	case s.State == StatePaused && s.Reason == ReasonPoolFull && v == VerbPause:
		return Cell{Rule: Moves}
	}
	return cell
}

// KeepsDisk reports whether a failed sandbox still has its disk.
func (s Sandbox) KeepsDisk() bool {
	return s.Reason != ReasonCreateFailed && s.Reason != ReasonInterrupted
}

// Refuse is the error of a verb that is refused in the state s is in. It names the verb that helps.
func (s Sandbox) Refuse(v Verb) *Error {
	e := &Error{Code: CodeInvalidState, Message: fmt.Sprintf("%s is not possible in this state", v), Cause: s.Condition(),
		SandboxID: s.ID, OperationID: s.OperationID}
	e.Remedy = "create another sandbox"
	if helps := v.On(s).Helps; helps != "" {
		e.Remedy = s.Advice(helps)
	}
	return e
}

// Condition says in which state s is, and why.
func (s Sandbox) Condition() string {
	text := fmt.Sprintf("sandbox %s is %s", s.ID, s.State)
	if s.Reason != "" {
		text += " (" + s.Reason + ")"
	}
	return text
}

// Advice is how a verb is asked for, as a remedy.
func (s Sandbox) Advice(v Verb) string {
	ref := s.Name
	if ref == "" {
		ref = string(s.ID)
	}
	if v == VerbDelete {
		return fmt.Sprintf("delete it (space rm %s, or DELETE /v1/sandboxes/%s) and create another one", ref, ref)
	}
	return fmt.Sprintf("%s it first: space %s %s, or POST /v1/sandboxes/%s/%s", v, v, ref, ref, v)
}

// VerbTable is the table as Markdown.
func VerbTable() string {
	var b strings.Builder
	b.WriteString("| state |")
	for _, t := range Verbs() {
		fmt.Fprintf(&b, " %s |", t.Verb)
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(Verbs())) + "\n")
	for _, s := range States() {
		fmt.Fprintf(&b, "| `%s` |", s)
		for _, t := range Verbs() {
			fmt.Fprintf(&b, " %s |", t.words(t.Verb.In(s)))
		}
		b.WriteString("\n")
	}
	return b.String()
}

func (t Transition) words(c Cell) string {
	switch c.Rule {
	case Moves:
		return fmt.Sprintf("**%s** → `%s`", t.Via, t.End)
	case Already:
		return "succeeds, `no_change`"
	case Waits:
		return "waits its turn"
	case Joins:
		return "the same operation"
	case Gone:
		return "404"
	}
	if c.Helps != "" {
		return fmt.Sprintf("409; %s helps", c.Helps)
	}
	return "409"
}

"""Reads threshold automata in the format of ByMC and TACO: `.ta`, and `.eta` with resets and decrements.

>>> automaton = parse('''
... ta Vote {
...   shared votes; parameters n, t;
...   assumptions { n > 2 * t; }
...   locations { wait: [0]; voted: [1]; done: [2]; }
...   inits { wait == n - t; voted == 0; done == 0; votes == 0; }
...   rules {
...     0: wait -> voted when (true) do { votes' == votes + 1; };
...     1: voted -> done when (votes >= n - t) do {};
...   }
...   specifications { early: [](votes >= 1 || done == 0); }
... }''')
>>> print(*automaton.rules, sep="\\n")
0: wait -> voted when true do votes += 1
1: voted -> done when t + votes >= n
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from assay.protocols.automata.automaton import Automaton, Rule
from assay.protocols.automata.expressions import Number, Source, Token, Words, formula, number_of
from assay.protocols.automata.linear import Dnf, Formula, Linear, dnf, is_state, variable
from assay.record import reading
from assay.record.errors import BadInput

LARGEST_FILE = 8_000_000  # bytes; the largest published automaton has about half a megabyte
HEADS = ("skel", "ta", "threshAuto", "thresholdAutomaton")
SECTIONS = ("local", "shared", "parameters", "define", "assumptions", "locations", "inits", "rules", "specifications")


def read(path: Path) -> Automaton:
    """The automaton of a file; BadInput says line and column of what is wrong."""
    return parse(reading.text(path, "a threshold automaton is expected", LARGEST_FILE), str(path))


def parse(text: str, name: str = "automaton") -> Automaton:
    """The automaton of a text; `name` stands in error messages."""
    return _File(Words(Source(name, text))).automaton()


def condition(text: str, automaton: Automaton) -> Linear:
    """One comparison over an automaton's parameters, as `--weaken` takes it."""
    words = Words(Source("condition", text))
    cases = dnf(formula(words, {name: Number(variable(name)) for name in automaton.parameters}))
    if words.here.kind != "end":
        raise words.error(f"expected the end of the condition, found {words.shown}")
    if len(cases) != 1 or len(cases[0]) != 1:
        raise BadInput(f"condition '{text}': expected one comparison such as N >= 3*T")
    return cases[0][0]


class _File:
    """What has been read so far of one file."""

    def __init__(self, words: Words) -> None:
        self.words = words
        self.local: list[str] = []
        self.shared: list[str] = []
        self.parameters: list[str] = []
        self.locations: list[str] = []
        self.defined: dict[str, Number] = {}
        self.assumptions: list[Dnf] = []
        self.initial: list[Dnf] = []
        self.rules: list[Rule] = []
        self.numbers: set[str] = set()
        self.specifications: dict[str, Formula] = {}

    def automaton(self) -> Automaton:
        """The whole file."""
        words = self.words
        if words.here.text not in HEADS:
            raise words.error(f"expected 'skel NAME {{' or 'ta NAME {{', found {words.shown}")
        words.take()
        name = words.name("the automaton's name").text
        words.expect("{", "after the name")
        while not words.accept("}"):
            self.section()
        if words.here.kind != "end":
            raise words.error(f"expected the end of the file, found {words.shown}")
        if not self.locations or not self.rules:
            raise words.error(f"the automaton has no {'rules' if self.locations else 'locations'}")
        return Automaton(
            name, tuple(self.parameters), tuple(self.shared), tuple(self.locations), tuple(self.assumptions),
            tuple(self.initial), tuple(self.rules), self.specifications,
        )  # fmt: skip

    def section(self) -> None:
        """One section, by its first word."""
        words = self.words
        section = words.take()
        match section.text:
            case "local" | "shared" | "parameters":
                self.declare(getattr(self, section.text))
            case "define":
                self.define()
            case "assumptions":
                self.block(lambda: self.assumptions.append(self.statement(self.parameters)))
            case "locations":
                self.block(self.location)
            case "inits":
                names = [*self.parameters, *self.locations, *self.shared]
                self.block(lambda: self.initial.append(self.statement(names)))
            case "rules":
                self.block(self.rule)
            case "specifications":
                self.block(self.specification)
            case _:
                found = f"'{section.text}'" if section.text else "the end of the file"
                raise words.error(f"expected a section ({', '.join(SECTIONS)}) or '}}', found {found}", section)

    def block(self, entry: Callable[[], None]) -> None:
        """`(count) { entry entry … }`; the count is only a comment, published files get it wrong."""
        words = self.words
        if words.accept("("):
            if words.here.kind != "number":
                raise words.error(f"expected the number of entries, found {words.shown}")
            words.take()
            words.expect(")", "after the number of entries")
        words.expect("{", "to begin the section")
        while not words.accept("}"):
            entry()

    def declare(self, names: list[str]) -> None:
        words = self.words
        while True:
            names.append(self.fresh(words.name("a name")))
            if words.accept(";"):
                return
            words.expect(",", "or ';' after a name")

    def fresh(self, token: Token) -> str:
        taken = {*self.local, *self.shared, *self.parameters, *self.locations, *self.defined, "true", "false"}
        # Published files name a local variable as they like: it is never used, so it may be shadowed.
        if token.text in taken - set(self.local):
            raise self.words.error(f"the name '{token.text}' is used already", token)
        return token.text

    def define(self) -> None:
        words = self.words
        name = self.fresh(words.name("a name to define"))
        words.expect("==", "after the name to define")
        self.defined[name] = number_of(words, self.scope([*self.parameters]))
        words.expect(";", "after the definition")

    def scope(self, names: list[str]) -> dict[str, Number]:
        return {name: Number(variable(name), moves=name not in self.parameters) for name in names} | self.defined

    def statement(self, names: list[str]) -> Dnf:
        begun = self.words.here
        found = formula(self.words, self.scope(names))
        if not is_state(found):
            raise self.words.error("no temporal operator may stand here", begun)
        self.words.expect(";", "after the condition")
        return dnf(found)

    def location(self) -> None:
        words = self.words
        self.locations.append(self.fresh(words.name("a location")))
        words.expect(":", "after the location")
        words.expect("[", "to begin the values of the local variables")
        while not words.accept("]"):
            if words.here.kind != "number":
                raise words.error(f"expected a number, found {words.shown}")
            words.take()
            if not words.accept(";") and not words.accept(","):
                words.expect("]", "after the values")
                break
        words.expect(";", "after the location")

    def rule(self) -> None:
        words = self.words
        if words.here.kind not in ("number", "name"):
            raise words.error(f"expected a rule's number, found {words.shown}")
        number = words.take()
        if number.text in self.numbers:
            raise words.error(f"there are two rules {number.text}", number)
        self.numbers.add(number.text)
        words.expect(":", "after the rule's number")
        source = self.known_location()
        words.expect("->", "after the location")
        target = self.known_location()
        words.expect("when", "after the locations")
        begun = words.here
        guard = formula(words, self.scope([*self.parameters, *self.shared]))
        if not is_state(guard):
            raise words.error("no temporal operator may stand in a guard", begun)
        update, resets = self.effect()
        words.expect(";", "after the rule")
        cases = dnf(guard)
        self.rules += [Rule(number.text, source, target, case, update, resets) for case in cases]

    def known_location(self) -> str:
        token = self.words.name("a location")
        if token.text not in self.locations:
            raise self.words.error(f"unknown location '{token.text}'; there are {', '.join(self.locations)}", token)
        return token.text

    def effect(self) -> tuple[tuple[tuple[str, int], ...], tuple[str, ...]]:
        words = self.words
        words.expect("do", "after the guard")
        words.expect("{", "after 'do'")
        added: dict[str, int] = {}
        resets: list[str] = []
        kept: set[str] = set()
        while not words.accept("}"):
            if words.accept("unchanged"):
                self.unchanged(kept, {*added, *resets})
            else:
                self.assignment(added, resets, kept)
            if not words.accept(";") and words.here.text != "}":
                words.expect(";", "after the update")
        return tuple((name, by) for name, by in added.items() if by), tuple(resets)

    def unchanged(self, kept: set[str], written: set[str]) -> None:
        words = self.words
        words.expect("(", "after 'unchanged'")
        while not words.accept(")"):
            name = words.name("a shared variable")
            self.written_once(name, written)
            kept.add(name.text)
            if not words.accept(","):
                words.expect(")", "after the variables")
                return

    def assignment(self, added: dict[str, int], resets: list[str], kept: set[str]) -> None:
        words = self.words
        token = words.name("a shared variable")
        self.written_once(token, {*kept, *added, *resets})
        words.expect("'", "after the variable: the value after the step is primed")
        if not words.accept(":="):
            words.expect("==", "or ':=' after the primed variable")
        begun = words.here
        value = number_of(words, self.scope([*self.parameters, *self.shared]))
        by = (value + -1 * Number(variable(token.text))).constant
        if by is not None:
            added[token.text] = by
        elif value.constant == 0:
            resets.append(token.text)
        else:
            raise words.error(f"expected {token.text}, {token.text} plus or minus a number, or 0", begun)

    def written_once(self, token: Token, written: set[str]) -> None:
        if token.text not in self.shared:
            known = ", ".join(self.shared) or "none"
            raise self.words.error(f"'{token.text}' is no shared variable; there are {known}", token)
        if token.text in written:
            raise self.words.error(f"'{token.text}' is given two values", token)

    def specification(self) -> None:
        words = self.words
        name = words.name("a specification's name")
        if name.text in self.specifications:
            raise words.error(f"there are two specifications '{name.text}'", name)
        words.expect(":", "after the specification's name")
        scope = self.scope([*self.parameters, *self.shared, *self.locations])
        self.specifications[name.text] = formula(words, scope)
        words.expect(";", "after the specification")

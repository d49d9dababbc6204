"""Small random threshold automata, as Hypothesis draws them."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from assay.protocols.automata.automaton import Automaton, Rule
from assay.protocols.automata.linear import Dnf, Linear, dnf, equal, greater, linear, number, variable
from assay.protocols.automata.specification import Moment, Stall, Violation, resting

N, T, F = (variable(name) for name in "NTF")
PLACES = ("a", "b", "c", "d")
COUNTERS = ("x", "y")
THRESHOLDS = (number(1), number(2), T + number(1) - F, N - T - F, number(1) - F + T + T, T, F)


def guards(counters: tuple[str, ...]) -> st.SearchStrategy[tuple[Linear, ...]]:
    """Up to two comparisons of a counter, or of both together, with a threshold."""

    @st.composite
    def one(draw: st.DrawFn) -> Linear:
        chosen = draw(st.sampled_from([*((name,) for name in counters), counters]))
        total = linear(dict.fromkeys(chosen, draw(st.sampled_from([1, 1, 2]))))
        limit = draw(st.sampled_from(THRESHOLDS))
        return draw(st.sampled_from([total - limit, total - limit, limit - total - number(1)]))

    return st.lists(one(), max_size=2).map(tuple)


@st.composite
def automata(draw: st.DrawFn) -> Automaton:
    """Two to four locations, one or two counters, N > kT and T >= F, up to six rules; cycles are welcome."""
    places = PLACES[: draw(st.integers(2, 4))]
    counters = COUNTERS[: draw(st.integers(1, 2))]
    rules = []
    for position in range(draw(st.integers(1, 6))):
        source, target = draw(st.sampled_from(places)), draw(st.sampled_from(places))
        update = tuple((name, by) for name in counters if (by := draw(st.sampled_from([0, 0, 1, 1, 2]))))
        rules.append(Rule(str(position), source, target, draw(guards(counters)), update))
    inhabited = places[: draw(st.integers(1, 2))]
    everyone = linear(dict.fromkeys(inhabited, 1))
    empty = [equal(variable(name), number(0)) for name in (*(p for p in places if p not in inhabited), *counters)]
    ratio = draw(st.integers(1, 3))
    return Automaton(
        "Random", ("N", "T", "F"), counters, places,
        (dnf(greater(N, ratio * T)), ((T - F,),)),
        (dnf(equal(everyone, N - F)), *(dnf(one) for one in empty)),
        tuple(rules),
    )  # fmt: skip


@st.composite
def resting_automata(draw: st.DrawFn) -> Automaton:
    """As above, but no process can go round: rules lead onwards, and some that change nothing let processes wait."""
    drawn = draw(automata())
    order = {name: position for position, name in enumerate(drawn.locations)}
    onwards = [rule for rule in drawn.rules if order[rule.source] < order[rule.target]]
    waiting = [
        Rule(f"w{name}", name, name, draw(guards(drawn.shared))) for name in drawn.locations if draw(st.booleans())
    ]
    return replace(drawn, rules=(*onwards, *waiting))


@st.composite
def stalls(draw: st.DrawFn, automaton: Automaton) -> Stall:
    """Something kept empty or occupied, at times from a moment on, and a resting place with some fairness."""
    places = st.sampled_from(automaton.locations)

    def kept() -> Dnf:
        if draw(st.booleans()):
            return ((-1 * variable(draw(places)),),)
        return tuple((variable(name) - number(1),) for name in draw(st.sets(places, min_size=1, max_size=2)))

    always = (kept(),) if draw(st.booleans()) else ()
    moments = ()
    if draw(st.booleans()):
        moments = (Moment((variable(draw(places)) - number(1),), (kept(),) if draw(st.booleans()) else ()),)
    fair = ((-1 * variable(draw(places)),), *((-1 * form - number(1),) for form in draw(guards(automaton.shared))))
    return Stall((), always, moments, (fair, *resting(automaton)))


@st.composite
def violations(draw: st.DrawFn, automaton: Automaton) -> Violation:
    """Some locations occupied, at times by two processes, at times others empty, at times from a narrower start."""
    order = draw(st.permutations(automaton.locations))
    occupied = order[: draw(st.integers(1, 2))]
    goal = [variable(name) - number(draw(st.sampled_from([1, 1, 2]))) for name in occupied]
    if draw(st.booleans()) and len(order) > 2:
        goal.append(-1 * variable(order[-1]))
    start = (-1 * variable(automaton.locations[1]),) if draw(st.booleans()) else ()
    return Violation(start, (tuple(goal),))

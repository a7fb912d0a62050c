"""Frames and parts of the English sentences of `spoken`."""

BY = (
    *("by {g}", "by {g}", "by {g}", "per {g}", "for each {g}", "grouped by {g}", "broken down by {g}", "split by {g}"),
    *("across {g}", "for every {g}", "group by {g}", "for different {g}", "in each {g}", "by each {g}", "per each {g}"),
    *("segmented by {g}", "breakdown by {g}", "separated by {g}", "- by {g}"),
)
POLITE = (
    *("Could you show me {x}", "Can I get {x}", "I would like to see {x}", "I need {x}", "We want to know {x}"),
    *("Please give me {x}", "Would you mind pulling up {x}", "I'm trying to find {x}", "hey can someone tell me {x}"),
    *("quick one - {x}", "could you please pull {x}", "may I have {x}", "I was wondering about {x}", "help me see {x}"),
    *("can you check {x}", "i need to see {x} please", "i'd love to get {x}", "would it be possible to see {x}"),
    *("any chance I could get {x}", "can u show {x}", "my boss wants {x}", "for the incident review: {x}"),
    *("please plot {x} for me", "sorry to bother, I need {x}", "could we look at {x}", "trying to understand {x}"),
)
QUESTIONS = ("Could", "Can", "Would", "hey", "could", "may", "can", "would", "any")
PLAIN = (
    *("{x}", "{x}", "{x}", "{x}", "{x}", "{x}", "show {x}", "show me {x}", "give me {x}", "get {x}", "plot {x}"),
    *("I want {x}", "list {x}", "display {x}", "graph {x}", "find {x}", "gimme {x}", "chart {x}", "see {x}"),
)
OPENING = (
    "Show me",
    "Let's see",
    "I'd like",
    "Give me",
    "Can you get me",
    "Looking for",
    "I want",
    "Get me",
    "We need",
)
SECOND_CONDITION = (
    *("Only where {r}", "Just the ones where {r}", "Keep only those where {r}", "But only if {r}"),
    *("Restrict it to where {r}", "Filter to {r}", "I only care about cases where {r}", "Condition: {r}"),
)
SECOND_GROUP = (
    *("Break it down by {r}", "Split that by {r}", "Group them by {r}", "One line per {r} please"),
    *("Do it by {r}", "Separate lines for each {r}", "I need it per {r}"),
)
MOST = (
    *("top {n} {gs} by {x}", "top {n} {gs} by {x}", "the {n} {gs} with the highest {x}", "{gs} ranked by {x}, top {n}"),
    *("{n} biggest {gs} by {x}", "{x} by {g}, top {n} only", "top {n} {x} by {g}"),
    *(
        "{x} per {g} limit {n}, highest first",
        "first {n} {gs} ordered by {x} desc",
        "which {n} {gs} have the highest {x}",
    ),
    *("what are the top {n} {gs} by {x}", "{n} {gs} with the largest {x}"),
)
LEAST = (
    *("bottom {n} {gs} by {x}", "the {n} {gs} with the lowest {x}", "{x} by {g}, lowest {n}"),
    *("{n} {gs} with the least {x}", "{n} {gs} with the smallest {x}", "which {n} {gs} have the lowest {x}"),
    *("{x} per {g} ascending, limit {n}", "first {n} {gs} ordered by {x} asc"),
)
DESCENDING = (
    *("which {g} has the highest {x}", "which {gs} have the highest {x}", "{x} by {g} sorted descending"),
    *("{x} by {g} highest first", "{x} by {g}, biggest first", "{gs} sorted by {x} descending", "rank {gs} by {x}"),
    *("{gs} ordered by {x} desc", "{gs} with the highest {x}", "what {g} has the largest {x}", "{x} per {g}, desc"),
)
ASCENDING = (
    *("which {g} has the lowest {x}", "which {gs} have the lowest {x}", "{x} by {g} sorted ascending"),
    *("{x} by {g} lowest first", "{x} by {g}, smallest first", "{gs} sorted by {x} ascending"),
    *("{gs} ordered by {x} asc", "{gs} with the lowest {x}", "{x} per {g}, asc", "{gs} from lowest to highest {x}"),
)
MOST_EVENTS = (
    *(
        "{n}{gs} with the most {e}",
        "top {n}{gs} by {e}",
        "which {n}{gs} have the most {e}",
        "the {n}{gs} with most {e}",
    ),
    *("{n}most common {gs}", "busiest {n}{gs}", "{n}most frequent {gs}"),
)
LEAST_EVENTS = (
    *("{n}{gs} with the fewest {e}", "which {n}{gs} have the fewest {e}", "the {n}{gs} with the least {e}"),
    *("{n}least common {gs}", "{n}rarest {gs}", "quietest {n}{gs}"),
)
SIGNS = {
    ">": ("over {v}", "above {v}", "more than {v}", "> {v}", "greater than {v}", "exceeding {v}"),
    ">=": ("at least {v}", ">= {v}", "{v} or more", "no less than {v}", "{v}+"),
    "<": ("under {v}", "below {v}", "less than {v}", "< {v}", "fewer than {v}"),
    "<=": ("at most {v}", "<= {v}", "{v} or less", "no more than {v}", "up to {v}"),
}
HAVING_EVENTS = (
    *(
        "{gs} with {s} {e}",
        "{gs} with {s} {e}",
        "which {gs} have {s} {e}",
        "only {gs} with {s} {e}",
        "{gs} having {s} {e}",
    ),
    *("{gs} that have {s} {e}", "{gs} that had {s} {e}", "any {g} with {s} {e}", "every {g} with {s} {e}"),
    *("what {gs} have {s} {e}", "which {gs} got {s} {e}"),
)
HAVING = (
    *("{gs} with {x} {s}", "{gs} with {x} {s}", "which {gs} have {x} {s}", "only {gs} with {x} {s}"),
    *("{gs} having {x} {s}", "{gs} whose {x} is {s}", "{gs} where {x} is {s}", "any {g} with {x} {s}"),
    *("{gs} where the {x} is {s}", "what {gs} have a {x} {s}", "{gs} with a {x} {s}"),
)
HAVING_TAIL = (
    *(
        ", only those with {x} {s}",
        "having {x} {s}",
        ", keep each {g} whose {x} is {s}",
        ", but only if the {x} is {s}",
    ),
    *("and only show {g} with {x} {s}", ", just those where {x} is {s}", ", drop the rest unless {x} is {s}"),
    *("having a {x} {s}", ", limited to those with {x} {s}", ", {x} {s} only"),
)

"""Frames of the questions of `vague`, which name no column: {v} is a value, {g} and {gs} are groups, {e} are events."""

SLUGGISH = (
    *("how sluggish are things", "are we lagging", "is it slower than usual", "are things crawling", "how laggy is it"),
    *("does everything feel slow", "how is performance", "are response times ok", "is anything dragging"),
    *("why is everything so slow", "is it slow", "slowness", "feels slow today", "perf looks bad", "are we slow again"),
    *("performance", "is performance degrading", "did we get slower", "speed overview", "things seem sluggish"),
    *("how fast are we", "is something hanging", "users complain that it is slow", "how long does stuff take"),
    *("how long do things take", "response time problems", "are we getting slower", "why so slow", "is it lagging"),
)
SLUGGISH_FOR = (
    *("is {v} sluggish", "how laggy is {v}", "{v} feels slow", "is {v} getting slower", "people say {v} is crawling"),
    *("how is {v} performing", "{v} seems to hang", "why is {v} slow", "is {v} slow", "{v} is lagging", "{v} slow?"),
    *("is {v} dragging", "{v} performance", "how slow is {v}", "{v} takes forever", "did {v} get slower"),
    *("is {v} hanging", "{v} has become slow", "how fast is {v}", "is {v} degraded", "slowness in {v}", "{v} is stuck"),
)
SLOW_BY = (
    *("which {gs} are stuck", "which {gs} drag", "which {gs} hang", "what {gs} are crawling", "laggiest {gs}"),
    *("stuck {gs}", "hanging {gs}", "slow {gs}", "slowest {gs}", "which {gs} are slow", "{gs} that hang"),
    *("which {gs} take forever", "{gs} taking too long", "find the slow {gs}", "which {g} is the slowest"),
    *("what {gs} are lagging", "lagging {gs}", "sluggish {gs}", "which {gs} are slowing us down", "{gs} running long"),
    *(
        "any {gs} stuck",
        "are any {gs} hanging",
        "long running {gs}",
        "which {g} is lagging behind",
        "worst {gs} for speed",
    ),
)
FAILING = (
    *("what is broken", "is anything blowing up", "are we throwing errors", "how many things went wrong"),
    *("anything on fire", "did stuff fail", "failures", "is it broken", "what keeps failing", "errors", "error count"),
    *("are we erroring", "anything failing", "is something broken", "what is failing", "did anything crash"),
    *(
        "how many failures",
        "things going wrong",
        "is prod on fire",
        "any errors",
        "crashes",
        "what's failing right now",
    ),
)
FAILING_FOR = (
    *("is {v} broken", "is {v} throwing errors", "did {v} fail", "what went wrong in {v}", "{v} failures"),
    *("{v} keeps crashing", "is {v} failing", "errors in {v}", "{v} errors", "why does {v} fail", "{v} is flaky"),
    *(
        "is {v} flaky",
        "{v} is down",
        "is {v} blowing up",
        "did {v} break",
        "{v} keeps failing",
        "how often does {v} fail",
    ),
)
FAILING_BY = (
    *("which {g} is broken", "which {gs} keep failing", "where are the failures by {g}", "who is failing, by {g}"),
    *("failures per {g}", "failing {gs}", "broken {gs}", "which {gs} are failing", "flaky {gs}", "crashing {gs}"),
    *("which {gs} are flaky", "{gs} with failures", "which {gs} throw errors", "what {gs} are erroring"),
    *("which {gs} crash", "errors per {g}", "unreliable {gs}", "{gs} that keep failing", "which {gs} break the most"),
)
RETRYING = (
    *("are things being retried", "is anything retrying", "retries happening", "how many {e} were retried"),
    *("retried {e}", "{e} that had to be retried", "are we retrying a lot", "did we have to retry"),
)
RETRYING_BY = (
    *("which {gs} keep retrying", "retrying {gs}", "{gs} that keep retrying", "which {gs} are being retried"),
    *("what {gs} get retried", "{gs} stuck retrying", "who retries, by {g}", "retried {e} per {g}", "retries by {g}"),
)
BEHIND_BY = (
    *("which {gs} have the worst {c}", "{gs} falling behind on {c}", "which {gs} have the most {c}"),
    *("where is {c} the worst, by {g}", "worst {c} by {g}", "which {g} has a {c} problem", "{gs} with the biggest {c}"),
)
MARKED = (
    *("{w} {e}", "how many {e} were {w}", "how many {e} are {w}", "are {e} getting {w}", "any {w} {e}"),
    *("number of {w} {e}", "{e} that were {w}", "count {w} {e}", "{e} that got {w}", "are we seeing {w} {e}"),
)
MARKED_BY = (
    *("{w} {e} by {g}", "which {gs} are {w}", "which {gs} get {w}", "{w} {e} per {g}", "who gets {w}, by {g}"),
    *("{w} {gs}", "which {gs} have {w} {e}"),
)
ALL = (
    *("how much traffic is there", "how busy are we", "everything", "just the total", "how many are there overall"),
    *("volume", "overall count", "traffic", "how much load", "total", "load", "what's going on", "activity", "all {e}"),
    *("how many {e} overall", "give me the big picture", "event volume", "show all", "all of it", "show me everything"),
    *("how many in total", "any {e} at all", "is there traffic", "overall volume", "are we getting any {e}"),
)
ALL_FOR = (
    "{v} traffic",
    "how busy is {v}",
    "load on {v}",
    "{v} volume",
    "how much does {v} get",
    "is {v} getting traffic",
)
ALL_BY = ("traffic by {g}", "busiest {gs}", "which {gs} are busy", "load per {g}", "which {gs} get the most traffic")

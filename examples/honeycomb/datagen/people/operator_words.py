"""Words for conditions: after "where" (`VERB`), after a noun or "with" (`NOUN`), and with their own lead (`PHRASE`)."""

VERB = {
    "=": (
        *("{c} is {v}", "{c} is {v}", "{c} = {v}", "{c}={v}", "{c} equals {v}", "{c} == {v}", "{c} is exactly {v}"),
        *("{c} matches {v}", "the {c} is {v}", "{c} was {v}", "{c} equal to {v}", "{c}: {v}", "{v} is the {c}"),
    ),
    "!=": (
        *("{c} is not {v}", "{c} isn't {v}", "{c} != {v}", "{c} <> {v}", "{c} is anything but {v}", "{c} not {v}"),
        *("{c} is not equal to {v}", "{c} does not equal {v}", "{c} isnt {v}", "{c} differs from {v}", "{c}!={v}"),
    ),
    ">": (
        *("{c} > {v}", "{c} is over {v}", "{c} is above {v}", "{c} exceeds {v}", "{c} is more than {v}", "{c}>{v}"),
        *("{c} goes above {v}", "{c} over {v}", "{c} is greater than {v}", "{c} took more than {v}", "{c} is > {v}"),
    ),
    ">=": (
        *("{c} >= {v}", "{c} is at least {v}", "{c} is {v} or more", "{c} is no less than {v}", "{c}>={v}"),
        *("{c} is {v} or higher", "{c} at least {v}", "{c} is {v}+", "{c} is greater than or equal to {v}"),
    ),
    "<": (
        *("{c} < {v}", "{c} is under {v}", "{c} is below {v}", "{c} is less than {v}", "{c} stays under {v}"),
        *("{c} under {v}", "{c} is lower than {v}", "{c} is smaller than {v}", "{c}<{v}"),
    ),
    "<=": (
        *("{c} <= {v}", "{c} is at most {v}", "{c} is {v} or less", "{c} is no more than {v}", "{c}<={v}"),
        *("{c} is not over {v}", "{c} at most {v}", "{c} is less than or equal to {v}", "{c} is up to {v}"),
    ),
    "between": (
        *("{c} is between {v} and {w}", "{c} is from {v} to {w}", "{c} between {v} and {w}"),
        *("{c} ranges from {v} to {w}", "{c} is in the range {v} to {w}", "{c} is {v} to {w}"),
    ),
    "contains": (
        *("{c} contains {v}", "{c} contains {v}", "{c} contains {v}", "{c} has {v} in it", "{c} includes {v}"),
        *("{c} mentions {v}", "{c} containing {v}", "{c} has {v} somewhere", "{v} is in {c}", "{c} like {v}"),
        *("{v} appears in {c}", "{c} contain {v}"),
    ),
    "does-not-contain": (
        *("{c} does not contain {v}", "{c} doesn't contain {v}", "{c} does not include {v}", "{c} not contains {v}"),
        *("{c} doesnt contain {v}", "{c} doesn't mention {v}", "{c} has no {v} in it", "{v} is not in {c}"),
    ),
    "starts-with": (
        *("{c} starts with {v}", "{c} starts with {v}", "{c} begins with {v}", "{c} is prefixed with {v}"),
        *("{c} starts {v}", "{c} start with {v}", "{c} has the prefix {v}", "{c} starting with {v}"),
    ),
    "does-not-start-with": (
        *("{c} does not start with {v}", "{c} doesn't begin with {v}", "{c} doesn't start with {v}"),
        *("{c} does not begin with {v}", "{c} doesnt start with {v}", "{c} lacks the prefix {v}"),
    ),
    "ends-with": (
        *("{c} ends with {v}", "{c} ends with {v}", "{c} ends in {v}", "{c} has the suffix {v}", "{c} end with {v}"),
        *("{c} ending with {v}", "{c} finishes with {v}"),
    ),
    "does-not-end-with": (
        *("{c} does not end with {v}", "{c} doesn't end in {v}", "{c} doesn't end with {v}"),
        *("{c} does not end in {v}", "{c} doesnt end with {v}"),
    ),
    "exists": (
        *("{c} exists", "{c} is present", "{c} is not null", "{c} has a value", "{c} isn't empty", "there is a {c}"),
        *("{c} is set", "{c} was set", "{c} is not empty", "{c} is filled in", "{c} != null", "{c} is known"),
        *("we have a {c}", "{c} is populated", "{c} isn't missing", "{c} isn't null", "{c} is defined"),
    ),
    "does-not-exist": (
        *("{c} does not exist", "{c} is missing", "{c} is null", "{c} is absent", "{c} is empty", "there is no {c}"),
        *("{c} was never set", "{c} is not set", "{c} isn't set", "{c} doesn't exist", "{c} = null", "{c} is unset"),
        *("{c} has no value", "{c} is blank", "we have no {c}", "{c} is not present", "{c} was not recorded"),
    ),
    "in": (
        *("{c} is {or}", "{c} is one of {list}", "{c} in {list}", "{c} in ({list})", "{c} is either {or}"),
        *("{c} is any of {list}", "{c} = {or}", "{c} is in {list}", "{c} is {or}", "{c} can be {or}"),
    ),
    "not-in": (
        *("{c} is not {or}", "{c} not in {list}", "{c} not in ({list})", "{c} is none of {list}", "{c} isn't {or}"),
        *("{c} is neither {nor}", "{c} is not one of {list}", "{c} is not in {list}"),
    ),
    "true": (
        "{c} is true",
        "{c} = true",
        "{c}=true",
        "{c} is yes",
        "{c} is on",
        "{c} true",
        "{c} was true",
        "{c} == true",
    ),
    "false": (
        *("{c} is false", "{c} = false", "{c}=false", "{c} is not true", "{c} is off", "{c} false", "{c} isn't true"),
        *("{c} was false", "{c} is no"),
    ),
}

NOUN = {
    "=": ("{c} {v}", "{c} {v}", "{c} {v}", "{c} = {v}", "{c}={v}", "{c} of {v}", "{c} equal to {v}", "{v} as {c}"),
    "!=": ("{c} not {v}", "{c} other than {v}", "{c} != {v}", "any {c} except {v}", "{c} not equal to {v}"),
    ">": (
        *("{c} over {v}", "{c} above {v}", "{c} > {v}", "{c} greater than {v}", "{c} higher than {v}"),
        *("more than {v} {c}", "{c} more than {v}", "{c} exceeding {v}", "over {v} {c}"),
    ),
    ">=": ("{c} at least {v}", "{c} of {v} or more", "{c} >= {v}", "at least {v} {c}", "{c} from {v} up", "{c} {v}+"),
    "<": (
        "{c} under {v}",
        "{c} below {v}",
        "{c} < {v}",
        "{c} less than {v}",
        "less than {v} {c}",
        "fewer than {v} {c}",
    ),
    "<=": ("{c} at most {v}", "{c} up to {v}", "{c} <= {v}", "{c} of {v} or less", "{c} no more than {v}"),
    "between": ("{c} between {v} and {w}", "{c} from {v} to {w}", "a {c} between {v} and {w}", "{c} {v}-{w}"),
    "contains": (
        *("{c} containing {v}", "{v} in {c}", "{v} somewhere in {c}", "{c} with {v} in it", "{c} including {v}"),
        *("{c} like {v}", "{v} in the {c}", "{c} mentioning {v}"),
    ),
    "does-not-contain": ("{c} not containing {v}", "{c} without {v} in it", "no {v} in {c}", "{c} not like {v}"),
    "starts-with": ("{c} starting with {v}", "{c} beginning with {v}", "{c} prefix {v}", "a {c} that starts with {v}"),
    "does-not-start-with": ("{c} not starting with {v}", "{c} not beginning with {v}"),
    "ends-with": ("{c} ending with {v}", "{c} ending in {v}", "{c} suffix {v}", "a {c} that ends with {v}"),
    "does-not-end-with": ("{c} not ending with {v}", "{c} not ending in {v}"),
    "exists": ("{c} present", "a {c}", "any {c} at all", "{c} not null", "some value in {c}", "{c} set", "a known {c}"),
    "does-not-exist": (
        *("no {c}", "no {c}", "{c} missing", "{c} absent", "{c} null", "an empty {c}", "nothing in {c}", "{c} not set"),
        *("empty {c}", "missing {c}", "{c} unset", "no {c} set", "null {c}", "a blank {c}"),
    ),
    "in": ("{c} {or}", "{c} in {list}", "{c} either {or}", "{c} any of {list}", "{c} {or}"),
    "not-in": ("{c} not in {list}", "{c} neither {nor}", "{c} none of {list}", "{c} other than {or}"),
    "true": ("{c} true", "{c} = true", "{c}=true", "{c} on"),
    "false": ("{c} false", "{c} = false", "{c}=false", "{c} off"),
}

PHRASE = {
    "=": (
        *("with {c} {v}", "for {c} {v}", "whose {c} is {v}", "on {c} {v}", "only {c} {v}", "with {c}={v}"),
        *("having {c} {v}", "from {c} {v}", "in {c} {v}", "for {c} = {v}", "just {c} {v}"),
    ),
    "!=": (
        *("excluding {c} {v}", "except {c} {v}", "without {c} {v}", "ignoring {c} {v}", "but not {c} {v}"),
        *("not {c} {v}", "whose {c} is not {v}", "leaving out {c} {v}", "minus {c} {v}", "other than {c} {v}"),
    ),
    ">": ("with {c} over {v}", "whose {c} exceeds {v}", "with more than {v} {c}", "having {c} > {v}"),
    ">=": ("with {c} at least {v}", "with {c} of {v} or more", "whose {c} is {v} or more", "with at least {v} {c}"),
    "<": ("with {c} under {v}", "whose {c} is below {v}", "having {c} < {v}", "with less than {v} {c}"),
    "<=": ("with {c} up to {v}", "whose {c} is at most {v}", "having {c} <= {v}"),
    "between": ("with {c} between {v} and {w}", "whose {c} is between {v} and {w}", "with {c} from {v} to {w}"),
    "contains": ("with {v} in {c}", "whose {c} contains {v}", "that have {v} in {c}", "with {c} containing {v}"),
    "does-not-contain": ("without {v} in {c}", "whose {c} doesn't contain {v}", "excluding {c} containing {v}"),
    "starts-with": ("whose {c} starts with {v}", "with {c} starting with {v}", "for {c} beginning with {v}"),
    "does-not-start-with": ("whose {c} doesn't start with {v}", "excluding {c} starting with {v}"),
    "ends-with": ("whose {c} ends with {v}", "with {c} ending in {v}", "for {c} ending with {v}"),
    "does-not-end-with": ("whose {c} doesn't end with {v}", "excluding {c} ending in {v}"),
    "exists": (
        *("with {c}", "with a {c}", "having a {c}", "that have a {c}", "that has {c}", "has {c}", "with {c} set"),
        *("with any {c}", "which have {c}", "that do have a {c}", "carrying a {c}", "with a non-empty {c}"),
    ),
    "does-not-exist": (
        *("without {c}", "without a {c}", "without {c}", "without any {c}", "missing {c}", "missing a {c}"),
        *("lacking {c}", "lacking a {c}", "with no {c}", "with no {c} at all", "that have no {c}", "w/o {c}"),
        *("no {c}", "that don't have a {c}", "with {c} missing", "not having a {c}", "that lack {c}"),
    ),
    "in": ("with {c} {or}", "for {c} {or}", "in {c} {or}", "whose {c} is {or}", "only {c} {or}"),
    "not-in": ("excluding {c} {and}", "except {c} {or}", "without {c} {or}", "ignoring {c} {and}", "but not {c} {or}"),
    "true": ("with {c} true", "with {c}=true", "where {c} is true", "with {c} on"),
    "false": ("with {c} false", "where {c} is false", "that are not {c}", "not {c}", "excluding {c}"),
}

AGGREGATES = {
    "AVG": (
        "average {c}",
        "avg {c}",
        "mean {c}",
        "average of {c}",
        "avg({c})",
        "{c} on average",
        "avg of {c}",
        "{c} avg",
    ),
    "SUM": (
        "total {c}",
        "sum of {c}",
        "sum {c}",
        "{c} in total",
        "sum({c})",
        "total of {c}",
        "{c} total",
        "summed {c}",
    ),
    "MAX": (
        *("max {c}", "maximum {c}", "highest {c}", "peak {c}", "largest {c}", "max({c})", "max of {c}", "biggest {c}"),
        "{c} max",
    ),
    "MIN": ("min {c}", "minimum {c}", "lowest {c}", "smallest {c}", "min({c})", "min of {c}", "{c} min"),
    "P50": ("median {c}", "p50 {c}", "p50 of {c}", "median of {c}", "P50({c})", "50th percentile of {c}", "{c} p50"),
    "P75": ("p75 {c}", "p75 of {c}", "75th percentile of {c}", "P75({c})", "{c} p75", "upper quartile of {c}"),
    "P90": ("p90 {c}", "P90 of {c}", "90th percentile {c}", "p90({c})", "{c} p90", "90th pct {c}"),
    "P95": (
        "p95 {c}",
        "p95 of {c}",
        "95th percentile of {c}",
        "P95({c})",
        "95th percentile {c}",
        "{c} p95",
        "p 95 of {c}",
    ),
    "P99": ("p99 {c}", "p99 of {c}", "99th percentile of {c}", "P99({c})", "{c} p99", "99th pctl {c}"),
    "HEATMAP": (
        *("heatmap of {c}", "distribution of {c}", "histogram of {c}", "{c} heatmap", "spread of {c}"),
        *("heat map of {c}", "{c} distribution", "how is {c} distributed", "heatmap({c})"),
    ),
    "COUNT_DISTINCT": (
        *("distinct {c}", "unique {c}", "number of distinct {c}", "how many different {c}", "count distinct {c}"),
        *("distinct count of {c}", "how many unique {c}", "number of different {c}", "how many distinct {c}"),
        *("unique {c} count", "number of unique {c}", "cardinality of {c}", "count of unique {c}"),
    ),
}

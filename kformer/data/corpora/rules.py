"""The rules by which pairs are repaired and left out, in the order in which they apply."""

# Each rule with what it does; `LEVELS` has those of each level.
RULES = (
    *("mojibake", "html", "empty", "too_long", "overlap", "duplicates", "near_duplicates"),
    *("identical", "letters", "length_ratio", "script", "language", "numbers", "alignment"),
)
LEVELS = {
    "none": (),
    "usual": tuple(rule for rule in RULES if rule not in ("numbers", "alignment")),
    "strict": RULES,
}


def check_packages(rules, what):
    """Checks that the packages that rules need are installed."""

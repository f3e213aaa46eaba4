"""What TaoBench's programs are called among the features."""
from __future__ import annotations

#: What the suite's own program is.
EMBEDDED = ('tao_server',)


def offered(source: str) -> tuple[str, ...]:
    """Features of an environment, by where its programs come from."""
    return EMBEDDED if source == 'embedded' else ()

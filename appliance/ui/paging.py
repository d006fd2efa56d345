"""Where a page of a long list is."""

from dataclasses import dataclass

PAGE_ROWS = 50


@dataclass(frozen=True, slots=True)
class Paging:
    """Page `page` of `pages`, from 1; rows `first` up to before `end`, from 0, of `total`."""

    total: int
    page: int
    pages: int
    rows: int

    @classmethod
    def of(cls, total: int, page: int, rows: int = PAGE_ROWS) -> "Paging":
        """The page that was asked for, or the nearest one that there is."""
        pages = max(1, -(-total // rows))
        return cls(total, min(max(1, page), pages), pages, rows)

    @property
    def first(self) -> int:
        return (self.page - 1) * self.rows

    @property
    def end(self) -> int:
        return min(self.total, self.first + self.rows)

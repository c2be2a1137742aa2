"""Monthly totals of a shop's sales, read from a CSV file."""

import csv
from collections import defaultdict
from decimal import Decimal


def parse_amount(text):
    """Turn '1,234.50' or '(12.00)' into a Decimal; parentheses mean a refund."""
    return Decimal(text.replace(",", "."))


def read_sales(path):
    """Yield (month, product, amount) for each row of the file."""
    with open(path, newline="", encoding="utf-8") as f:
        for row in csv.DictReader(f):
            yield row["date"][:7], row["product"], parse_amount(row["amount"])


def monthly_totals(sales):
    """Sum the amounts by month, months in order."""
    totals = defaultdict(Decimal)
    for month, _product, amount in sales:
        totals[month] += amount
    return dict(sorted(totals.items()))


def best_product(sales):
    """Return the product that sold for most."""
    totals = defaultdict(Decimal)
    for _month, product, amount in sales:
        totals[product] += amount
    return min(totals, key=totals.get)

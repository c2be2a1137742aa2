import unittest
from decimal import Decimal

from report import best_product, monthly_totals, parse_amount, read_sales

DATA = "data/sales.csv"


class ParseAmount(unittest.TestCase):
    def test_plain(self):
        self.assertEqual(parse_amount("12.50"), Decimal("12.50"))

    def test_thousands(self):
        self.assertEqual(parse_amount("1,234.50"), Decimal("1234.50"))

    def test_refund(self):
        self.assertEqual(parse_amount("(12.00)"), Decimal("-12.00"))


class Report(unittest.TestCase):
    def test_months_in_order(self):
        totals = monthly_totals([("2025-02", "tea", Decimal(2)), ("2025-01", "tea", Decimal(1))])
        self.assertEqual(list(totals), ["2025-01", "2025-02"])

    def test_best_product(self):
        self.assertEqual(best_product([("2025-01", "tea", Decimal(2)), ("2025-01", "coffee", Decimal(3))]), "coffee")

    def test_whole_file(self):
        totals = monthly_totals(read_sales(DATA))
        self.assertEqual(len(totals), 12)
        self.assertEqual(sum(totals.values()), Decimal("52141.38"))


if __name__ == "__main__":
    unittest.main()

"""The runner refuses wrong formats, and compares as ../README.md says."""

import unittest

from match import UnknownWord, difference, fill_in
from suite import Malformed, check_file

GET = {"get": {"key": "k"}, "expect": {"state": "free"}}
ACQUIRE = {"acquire": {"key": "k"}, "start": "c"}


def file(*steps, **members):
    return {"path": "cases/x.yaml", "about": "…", "cases": [{"name": "n", "steps": list(steps)}], **members}


class Format(unittest.TestCase):
    def test_what_is_not_known_is_refused(self):
        check_file(file(GET))
        for what, wrong in {
            "verb": file({"grab": {"key": "k"}, "expect": {}}),
            "two verbs": file({**GET, "stop": {"key": "k"}}),
            "member of a file": file(GET, colour="red"),
            "member of a step": file({**GET, "sleep": 1}),
            "argument": file({"get": {"key": "k", "colour": "red"}, "expect": {}}),
            "no argument": file({"get": {}, "expect": {}}),
            "no expectation": file({"get": {"key": "k"}}),
            "two expectations": file({**GET, "until": {}}),
            "until": file({"stop": {"key": "k"}, "until": {}}),
            "expectation of a started call": file({**ACQUIRE, "expect": {}}, {"cancel": {"call": "c"}}),
            "never finished": file(ACQUIRE),
            "never started": file({"cancel": {"call": "c"}}),
            "raw": file({"raw": {"method": "GET", "path": "/"}, "expect": {}}),
            "signal": file({"sidecar": {"signal": "HUP"}, "expect": {}}),
            "setting": file(GET, sidecar={"MAX_WAITERS": 1}),
        }.items():
            with self.subTest(what), self.assertRaises(Malformed):
                check_file(wrong)
        with self.assertRaises(UnknownWord):
            check_file(file({"get": {"key": "k"}, "expect": {"state": {"$like": "x"}}}))

    def test_what_was_not_saved_is_refused(self):
        self.assertEqual(fill_in({"a": ["$t", {"$long": 3}]}, {"t": 7}), {"a": [7, "aaa"]})
        with self.assertRaises(UnknownWord):
            fill_in({"a": "$u"}, {"t": 7})

    def test_matching(self):
        for want, got in [
            ({"a": 1}, {"a": 1, "b": 2}), ({"a": None}, {}), ([1, {}], [1, {"x": 1}]), ({"$gt": 1}, 2), ({"$le": 2}, 2),
            ({"$has": "b"}, "abc"), ({"$is": {"a": [1]}}, {"a": [1]}), ({"$any": True}, 0), (1, 1.0),
        ]:  # fmt: skip
            self.assertIsNone(difference(want, got), f"{want} must match {got}")
        for want, got in [
            ({"a": 1}, {"a": 2}), ({"a": 1}, {}), ({"a": 1}, [1]), ([1], [1, 2]), (1, True), (1, "1"), (None, False), ({"$gt": 1}, 1),
            ({"$gt": 1}, True), ({"$lt": 1}, None), ({"$has": "b"}, 1), ({"$is": {"a": 1}}, {"a": 1, "b": 2}), ({"$any": True}, None),
            ({"$is": 1}, True),
        ]:  # fmt: skip
            self.assertIsNotNone(difference(want, got), f"{want} must not match {got}")


if __name__ == "__main__":
    unittest.main()

import os
import tempfile
import unittest

from tally import bars, tally, words

TEXT = "The cat and the dog. The dog's bone, the cat's milk."


class Words(unittest.TestCase):
    def test_case_does_not_matter(self):
        self.assertEqual(words("The THE the"), ["the"] * 3)

    def test_an_apostrophe_belongs_to_its_word(self):
        self.assertEqual(words("it's 3 o'clock"), ["it's", "o'clock"])


class Tally(unittest.TestCase):
    def test_the_most_frequent_word_comes_first(self):
        self.assertEqual(tally(TEXT, 2), [("the", 4), ("and", 1)])

    def test_ties_are_in_the_order_of_the_alphabet(self):
        self.assertEqual(tally("b a b a"), [("a", 2), ("b", 2)])

    def test_an_empty_text_has_no_words(self):
        self.assertEqual(tally(""), [])


class Bars(unittest.TestCase):
    def test_the_highest_bar_is_full(self):
        self.assertEqual(bars("a a b", width=4), ["a #### 2", "b ##   1"])

    def test_bars_survive_a_round_trip_through_a_file(self):
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "bars")
            with open(path, "w") as file:
                file.write("\n".join(bars(TEXT)))
            with open(path) as file:
                self.assertEqual(file.read().splitlines(), bars(TEXT))


if __name__ == "__main__":
    unittest.main()

"""The closed vocabulary of the tiny model: colours, shapes, places and every word its tokenizer keeps whole.

Pure data, imported by the tokenizer, the questions and the evaluation; it knows nothing of pictures or of
torch.
"""

COLOURS = ("red", "green", "blue", "yellow", "orange", "purple", "black", "white")
SHAPES = ("circle", "square", "triangle", "star", "diamond", "cross")
PLACES = (
    "top left", "top", "top right", "left", "center", "right", "bottom left", "bottom", "bottom right",
)  # fmt: skip
NONE = "None"

# Words that may stand inside a sentence; each becomes one token together with the space before it.
INNER_WORDS = (
    *COLOURS, *SHAPES, *(f"{shape}s" for shape in SHAPES if shape != "cross"), "crosses",
    "top", "left", "center", "centre", "middle", "right", "bottom", "above", "below", "over", "under",
    "corner", "side",
    "a", "an", "and", "the", "of", "on", "in", "is", "it", "to", "or", "are", "there", "this", "that",
    "these", "with",
    "what", "which", "where", "how", "many", "does", "do", "you", "can", "tell", "me", "see", "read",
    "say", "says",
    "written", "text", "word", "words", "letters", "characters", "picture", "image", "photo", "color",
    "colour",
    "colored", "coloured", "shape", "shapes", "object", "objects", "thing", "things", "any", "number",
    "count", "background",
    "behind", "describe", "short", "sentence", "please", "place", "position", "located", "placed", "find",
    "part", "bar",
    "bars", "tallest", "highest", "longest", "biggest", "shortest", "both", "pictures", "images", "first",
    "second", "same", "more", "one",
    "two", "contains", "contain", "have", "has", "shown", "show", "shows", "drawn", "give", "name", "kind",
    "all", "at", "be",
    "for", "from", "I", "its", "s", "not", "no", "yes", "next", "near", "by", "out", "look", "looking",
    "just", "exactly", "answer",
    "helpful", "assistant", "questions", "about", "You", "Answer", "your", "other", "different", "also",
    "visible", "content", "write", "down", "printed", "big", "small", "large",
    "size", "chart", "graph", "height", "between", "up", "scene", "here", "type", "many",
)  # fmt: skip

# Words that begin a question, an answer or a system prompt. Their merges touch only strings with a capital and a small
# letter, so that characters read from a picture nearly always stay one token each.
FIRST_WORDS = (
    "What", "Which", "Where", "How", "Is", "Are", "Does", "Do", "Can", "Tell", "Read", "Describe", "Count",
    "Give", "Name",
    "Please", "The", "There", "In", "You", "Answer", "Yes", "No", "None", "A", "An", "Red", "Green",
    "Blue", "Yellow", "Orange",
    "Purple", "Black", "White", "Circle", "Square", "Triangle", "Star", "Diamond", "Cross", "Top", "Left",
    "Center",
    "Right", "Bottom", "Above", "Below", "Text", "First", "Second", "Look", "Find", "Say", "Looking",
    "Both", "Write",
)  # fmt: skip

"""The ordinary ways in which people put each question; some are kept for the evaluation.

`{colour}` is spelled both ways and `{picture}` is any word for a picture. Variation in punctuation, "please"
and case is added by `phrase`, not written out here.
"""

import random

# skill of the question -> (wordings to train on, wordings only the evaluation uses)
WORDINGS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "colour": (
        (
            "What {colour} is the {shape}?", "Which {colour} is the {shape}?",
            "What is the {colour} of the {shape}?",
            "Tell me the {colour} of the {shape}.", "What {colour} does the {shape} have?",
            "Which {colour} does the {shape} have?", "The {shape} is what {colour}?",
            "Name the {colour} of the {shape}.",
            "What {colour} is the {shape} in the {picture}?", "Can you tell me the {colour} of the {shape}?",
            "In which {colour} is the {shape} drawn?", "What's the {colour} of the {shape}?",
        ),
        ("Which {colour} is the {shape} in this {picture}?", "Give me the {colour} of the {shape}.",
         "In what {colour} is the {shape} shown?"),
    ),
    "only_colour": (
        ("What {colour} is the shape?", "What {colour} is it?", "Which {colour} do you see?",
         "What {colour} is the object?", "What {colour} is this shape?"),
        ("Which {colour} is the object?", "What is the {colour} of the shape?"),
    ),
    "shape": (
        (
            "Which shape is {colour_name}?", "What shape is {colour_name}?",
            "What is the {colour_name} shape?",
            "What shape is the {colour_name} object?", "Which object is {colour_name}?",
            "What is the {colour_name} thing?",
            "Which shape is the {colour_name} one?", "What {colour_name} shape do you see?",
            "What {colour_name} object is there?",
            "Name the {colour_name} shape.", "What kind of shape is {colour_name}?",
        ),
        ("Which shape is {colour_name} in the {picture}?", "Tell me which shape is {colour_name}.",
         "What shape does the {colour_name} object have?"),
    ),
    "only_shape": (
        (
            "Which shape do you see?", "What shape is it?", "What shape is this?",
            "Which shape is in the {picture}?",
            "What shape is shown?", "What shape do you see in the {picture}?", "Name the shape.",
            "Which shape is it?",
            "What is the shape?", "What shape is in this {picture}?", "Which shape is this?",
            "What kind of shape is this?",
        ),
        ("Which shape is shown here?", "What shape can you see?", "Tell me the shape."),
    ),
    "exist": (
        (
            "Is there {thing}?", "Is there {thing} in the {picture}?", "Do you see {thing}?",
            "Can you see {thing}?",
            "Does the {picture} contain {thing}?", "Is {thing} in the {picture}?",
            "Does this {picture} have {thing}?",
            "Is there {thing} here?", "Do you see {thing} in the {picture}?", "Is there any {bare}?",
            "Is {thing} shown?",
        ),
        ("Can you see {thing} in this {picture}?", "Does the {picture} show {thing}?", "Is {thing} visible?"),
    ),
    "count": (
        (
            "How many {things} are there?", "How many {things} do you see?",
            "How many {things} are in the {picture}?",
            "Count the {things}.", "How many {things} can you see?", "What is the number of {things}?",
            "How many {things} does the {picture} have?", "How many {things}?",
            "How many {things} are shown?",
            "Tell me how many {things} there are.",
        ),
        ("How many {things} are there in this {picture}?", "Count the {things} in the {picture}.",
         "Give the number of {things}."),
    ),
    "background": (
        (
            "What {colour} is the background?", "What is the {colour} of the background?",
            "Which {colour} is the background?",
            "What is the background {colour}?", "Tell me the background {colour}.",
            "What {colour} is behind the shapes?",
            "What background {colour} does the {picture} have?", "What {colour} does the background have?",
        ),
        ("Which {colour} does the background have?", "What {colour} is the background of this {picture}?"),
    ),
    "describe": (
        (
            "What is in this {picture}?", "Describe the {picture}.", "What do you see?",
            "Describe this {picture}.",
            "What is in the {picture}?", "What does the {picture} show?", "What can you see?",
            "What is shown?",
            "Describe what you see.", "What is this?", "What do you see in the {picture}?",
            "Describe the {picture} in one sentence.",
            "What can you see in this {picture}?", "Give a short description.",
            "What is on the {picture}?", "Tell me about the {picture}.",
            "What's in the {picture}?", "Describe.", "What is shown in the {picture}?",
            "Tell me what you see.",
        ),
        ("What does this {picture} show?", "Can you describe the {picture}?",
         "Describe this {picture} in one sentence."),
    ),
    "read": (
        (
            "Read the text in the {picture}.", "What does it say?", "Read the text.",
            "What is written in the {picture}?",
            "What does the text say?", "What text do you see?", "What is the text?",
            "Which text is in the {picture}?",
            "What is written?", "What word do you see?", "What does the {picture} say?",
            "What letters do you see?",
            "Read it.", "Tell me what it says.", "What text is shown?", "Which characters do you see?",
            "Read the word.",
            "Can you read the text?", "What is written here?", "Write down the text.",
        ),
        ("What text is in this {picture}?", "Read what is written.",
         "Can you read the text in the {picture}?"),
    ),
    "text_colour": (
        (
            "What {colour} is the text?", "Which {colour} is the text?", "What is the {colour} of the text?",
            "What {colour} are the letters?", "What is the text {colour}?",
            "Tell me the {colour} of the text.",
            "What {colour} does the text have?", "In which {colour} is the text written?",
        ),
        ("Which {colour} does the text have?", "What {colour} is the writing?"),
    ),
    "place": (
        (
            "Where is the {name}?", "Where is the {name} in the {picture}?", "Where do you see the {name}?",
            "In which part of the {picture} is the {name}?", "What is the position of the {name}?",
            "Where is the {name} located?",
            "Where can you see the {name}?", "Tell me where the {name} is.", "Find the {name}.",
            "Where's the {name}?",
            "In which corner is the {name}?",
        ),
        ("Where is the {name} placed?", "In what part of the {picture} is the {name}?",
         "Where in the {picture} is the {name}?"),
    ),
    "side": (
        (
            "Is the {a} {first} or {second} the {b}?", "Is the {a} {first} the {b} or {second} it?",
            "Tell me, is the {a} {first} or {second} the {b}?",
            "Is the {a} {first} or is it {second} the {b}?",
            "Where is the {a}, {first} or {second} the {b}?",
        ),
        ("In the {picture}, is the {a} {first} or {second} the {b}?",
         "Is the {a} placed {first} or {second} the {b}?"),
    ),
    "beside": (
        (
            "Is the {a} {side} the {b}?", "Do you see the {a} {side} the {b}?",
            "Is the {a} located {side} the {b}?",
            "In the {picture}, is the {a} {side} the {b}?",
        ),
        ("Is the {a} placed {side} the {b}?", "Can you see the {a} {side} the {b}?"),
    ),
    "tallest": (
        (
            "Which bar is tallest?", "Which bar is the tallest?", "What {colour} is the tallest bar?",
            "Which bar is the highest?",
            "What is the {colour} of the tallest bar?", "Which {colour} has the tallest bar?",
            "Which bar is highest?",
        ),
        ("Tell me which bar is tallest.", "Which {colour} is the tallest bar?"),
    ),
    "shortest": (
        ("Which bar is shortest?", "Which bar is the shortest?", "What {colour} is the shortest bar?",
         "What is the {colour} of the shortest bar?"),
        ("Tell me which bar is shortest.", "Which {colour} is the shortest bar?"),
    ),
    "which_picture": (
        (
            "Which {picture} has {thing}, the first or the second?",
            "Is {thing} in the first or the second {picture}?",
            "Which {picture} contains {thing}?", "In which {picture} is {thing}?",
            "Which {picture} shows {thing}?",
        ),
        ("Which {picture} has {thing}?", "In which {picture} do you see {thing}, the first or the second?"),
    ),
    "in_picture": (
        (
            "What shape is in the {nth} {picture}?", "Which shape do you see in the {nth} {picture}?",
            "What is the shape in the {nth} {picture}?", "Name the shape in the {nth} {picture}.",
        ),
        ("Which shape is in the {nth} {picture}?",),
    ),
    "colour_in_picture": (
        ("What {colour} is the shape in the {nth} {picture}?",
         "Which {colour} is the shape in the {nth} {picture}?",
         "What is the {colour} of the shape in the {nth} {picture}?"),
        ("What {colour} does the shape in the {nth} {picture} have?",),
    ),
    "follow_colour": (("What {colour} is it?", "And what {colour} is it?", "Which {colour} is it?",
    "And its {colour}?"), ("Which {colour} does it have?",)),
    "follow_place": (("Where is it?", "And where is it?", "Where is it in the {picture}?"),
    ("In which part of the {picture} is it?",)),
}  # fmt: skip

SYSTEM_PROMPTS = (
    "You are a helpful assistant.", "Answer briefly.", "You are a helpful assistant. Answer in one word.",
    "You answer questions about pictures.", "Look at the picture and answer.", "You are VisionChat.",
    "Give short answers.",
    "Please answer the question about the image.",
)  # fmt: skip


def phrase(rng: random.Random, skill: str, held_out: bool, **parts: str) -> str:
    """One wording of a question, spelled and punctuated in one of the ways people do."""
    training, kept = WORDINGS[skill]
    wording = rng.choice(kept if held_out else training)
    word = rng.choice(("picture", "picture", "image", "image", "photo"))
    text = wording.format(colour=rng.choice(("colour", "color")), picture=word, **parts)
    return _as_typed(rng, text)


def _as_typed(rng: random.Random, text: str) -> str:
    luck = rng.random()
    if luck < 0.08:
        text = f"{text[:-1]}, please{text[-1]}"
    elif luck < 0.12 and not text.startswith("I"):
        text = f"Please {text[0].lower()}{text[1:]}" if text[-1] == "." else text
    if rng.random() < 0.15:
        text = text.rstrip("?.")
    if rng.random() < 0.1:
        text = text[0].lower() + text[1:]
    return text

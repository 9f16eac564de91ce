"""The simulated engine's tokenizer: byte-level BPE over some hundred words, made from this file alone."""

from collections.abc import Iterator
from typing import Any

END = "<|end|>"
ROLES = ("system", "user", "assistant")
_COMMON = """
a able about above across after again age ago air all almost along also always am among an and animal another answer
any are area arm around as ask at away back bad ball bank base be bed been before began behind being below best better
between big bird black blue boat body book both box boy bring broad brown build built bus but buy by call came can car
care case cat cause change city class clean clear close cloud cold color come common cool corn could count country
course cover cross cry cup cut dark day deep did do does dog done door down draw dream dress drink drive drop dry each
early earth east easy eat edge egg end enough even evening ever every eye face fact fall family far farm fast father
feel feet few field fill final find fine fire first fish five floor flow flower fly follow food foot for force forest
form found four free fresh friend from front fruit full game garden gave get girl give glass go gold gone good got
grass great green ground group grow had half hand happy hard has hat have he head hear heart heat heavy held help her
here high hill him his hold home hope horse hot hour house how hundred ice idea if in inside into iron is island it its
job join jump just keep key kind king knew know lake land large last late laugh law lay lead leaf learn least leave left
leg less let letter life lift light like line list listen little live long look lost lot loud love low machine made mail
main make man many map mark market may me mean measure meet men might mile milk mind minute miss money month moon more
morning most mother mountain mouth move much music must my name near need never new next night nine no noise noon north
nose not note nothing notice now number of off often oil old on once one only open or orange order other our out over
own page paint paper park part party pass past path pay people perhaps person piece place plain plan plant play please
point poor press problem pull push put question quick quiet rain raise ran reach read ready red rest rice rich ride
right ring rise river road rock room round rule run safe said sail salt same sand saw say school sea season seat second
see seed seem self sell send sense set seven shape she ship shop short should show side sign silver simple sing sister
sit six size skin sky sleep slow small smile snow so soft soil some song soon sound south space speak special spring
square stand star start state stay steel step still stone stood stop store story street strong such sugar summer sun
sure table tail take talk tall taste teach team tell ten test than that the their them then there these they thin thing
think this those thought three through time tiny to today together told tomorrow too took top touch toward town track
train travel tree trip true try turn two under unit until up us use usual valley very view village visit voice wait walk
wall want war warm was wash watch water wave way we wear weather week well went were west what wheel when where which
while white who whole why wide wild will wind window winter wish with woman wonder wood word work world would write year
yellow yes yet you young your zero
"""
WORDS = _COMMON.split()


class SimulatedTokenizer:
    """About a token a short English word, a few for a longer one, and one for each byte of everything else."""

    def __init__(self) -> None:
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

        merges = list(_merges())
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        vocabulary = {token: index for index, token in enumerate([*alphabet, *("".join(pair) for pair in merges)])}
        self._backend = Tokenizer(models.BPE(vocabulary, merges))
        self._backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self._backend.decoder = decoders.ByteLevel()
        special = [END, *map(_role_token, ROLES)]
        self._backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
        self.end_id = self._id(END)

    @property
    def backend_tokenizer(self) -> Any:
        return self._backend

    def __len__(self) -> int:
        return int(self._backend.get_vocab_size())

    def get_vocab(self) -> dict[str, int]:
        return dict(self._backend.get_vocab())

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return list(self._backend.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
        return str(self._backend.decode(token_ids, skip_special_tokens=skip_special_tokens))

    def convert_ids_to_tokens(self, ids: int) -> str:
        return str(self._backend.id_to_token(ids))

    def apply_chat_template(self, conversation: list[dict[str, str]], **kwargs: Any) -> str:
        """The conversation as text, each message between its role's token and an end, and the answer's beginning."""
        messages = [f"{_role_token(message['role'])}{message['content']}{END}\n" for message in conversation]
        return "".join(messages) + _role_token("assistant")

    def words(self) -> list[int]:
        """Tokens that are a space and a whole word."""
        return [self._id(f"Ġ{word}") for word in WORDS]

    def capitals(self) -> list[int]:
        """Tokens that are a whole word with a capital letter, for a text's beginning."""
        return [self._id(word.capitalize()) for word in WORDS]

    def _id(self, token: str) -> int:
        found = self._backend.token_to_id(token)
        assert found is not None, token
        return found


def _role_token(role: str) -> str:
    return f"<|{role}|>"


def _merges() -> Iterator[tuple[str, str]]:
    """Each word grows by a letter a merge, from the space before it or from its capital: neither comes later in a
    word, so no merge of one word gets in the way of another's. Then all pairs of letters, for other words."""
    done = set[str]()
    for word in [written for common in WORDS for written in (f"Ġ{common}", common.capitalize())]:
        for end in range(2, len(word) + 1):
            if (token := word[:end]) not in done:
                done.add(token)
                yield word[: end - 1], word[end - 1]
    letters = "abcdefghijklmnopqrstuvwxyz"
    yield from ((first, second) for first in letters for second in letters)

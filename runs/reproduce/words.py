"""Writes the texts of `smollm2-reverse-text`: two to four common words, and the same letters from last to first."""
import json
import random
import sys
from pathlib import Path

WORDS = """
able acid aged also arch area army away baby back ball band bank base bath bear beat bell belt best bird blow blue boat body bold
bone book born both bowl boys bread brick bring broad brown build burn bush busy cake call calm camp card care case cash cast
chair chalk chief child city clay clean clear climb clock cloth cloud coal coast coat cold come cook cool copy corn cost count
cover craft cream crew crop cross crowd crown dance dark data date dawn deal dear deep deer desk dish door down draw dream dress
drink drive drop drum dust duty each early earth east easy edge eight empty enjoy even every face fact fair fall farm fast field
fight fill film find fine fire fish five flag flat floor flour flow fold food foot form forty found four fresh friend front fruit
full game gate gift girl give glad glass goal gold good grain grand grass great green group grow guard guest guide hair half hall
hand happy hard head hear heart heat heavy hill hold home honey hope horse hotel hour house human hunt idea inch iron island join
jump just keep kept kind king knee know lady lake lamp land large last late laugh lead leaf learn left letter level light like
line lion list live local long look loud love lunch maid mail main make many maple march mark market meal meat metal milk mind
mint model money month moon more most mother mouse mouth move much music name near neck need nest never news next night nine
noise north nose note ocean offer often only open orange order other over owner page paint pair paper park part party past path
peace pen piano pick piece pilot plain plan plane plant plate play point pond pool poor post pound power press price proud public
pull pupil pure push queen quick quiet quite race rain raise reach read real rest rice rich ride right ring river road rock roof
room root rose round rule safe sail salt same sand save scale school sea seat seed send seven shade shape share sharp sheep shell
ship shirt shoe shop short show side sign silk silver simple sing sister size skin sleep slow small smile smoke snow soap soft
soil song soon sound south space speak spend spoon sport spot spring stage stand star start steel step stone store storm story
street strong sugar suit summer sweet swim table tail take tall taste teach team tell tent thick thin think three time tiny today
tool total touch tower town trade train tree trip true turn under until uncle usual valley view visit voice walk wall warm wash
watch water wave west wheel white whole wide wife wild wind window wine wing winter wire wise wish wood wool word work world
yard year yellow young zero
""".split()


def rows(seed, count):
    draw = random.Random(seed)
    for _ in range(count):
        text = " ".join(draw.sample(WORDS, draw.randint(2, 4)))
        yield {"prompt": text, "completion": f"<reversed_text>{text[::-1]}</reversed_text>"}


def main(folder):
    for name, seed, count in [("sft", 1, 1000), ("train", 3, 1000), ("eval", 2, 100)]:
        lines = "".join(json.dumps(row) + "\n" for row in rows(seed, count))
        (Path(folder) / f"reversed-words-{name}.jsonl").write_text(lines)


if __name__ == "__main__":
    main(sys.argv[1])

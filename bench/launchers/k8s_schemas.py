"""Checks manifests of `plimsoll launch k8s` against the definitions that their controllers publish.

    python3 bench/launchers/k8s_schemas.py --schemas DIR job.yaml ...

DIR holds CustomResourceDefinitions as their projects publish them: `jobset.x-k8s.io_jobsets.yaml` of kubernetes-sigs/jobset and
`kubeflow.org_pytorchjobs.yaml` of kubeflow/training-operator. A key that a definition lacks is refused, as `kubectl apply` with strict validation
refuses it; each manifest is also changed by one misspelt key in turn, and that must be refused. Needs the packages jsonschema and pyyaml.
"""

import argparse
import copy
import pathlib
import sys

import jsonschema
import yaml


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--schemas", type=pathlib.Path, required=True, metavar="DIR")
    parser.add_argument("manifests", nargs="+", type=pathlib.Path, metavar="FILE")
    args = parser.parse_args()
    schemas = published(args.schemas)
    faults = 0
    for path in args.manifests:
        for manifest in yaml.safe_load_all(path.read_text()):
            faults += check(path, manifest, schemas)
    sys.exit(1 if faults else 0)


def published(folder):
    """Returns the schema of each (apiVersion, kind) in the folder, without room for unknown keys."""
    schemas = {}
    for path in sorted(folder.glob("*.yaml")):
        for crd in yaml.load_all(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            if not crd or crd.get("kind") != "CustomResourceDefinition":
                continue
            group, kind = crd["spec"]["group"], crd["spec"]["names"]["kind"]
            for version in crd["spec"]["versions"]:
                schemas[f"{group}/{version['name']}", kind] = closed(version["schema"]["openAPIV3Schema"], top=True)
    return schemas


def closed(schema, top=False):
    """Returns the schema as JSON Schema: no unknown keys, and numbers or texts where Kubernetes takes both."""
    if not isinstance(schema, dict):
        return schema
    schema = {key: value for key, value in schema.items() if key != "format"}
    if schema.get("x-kubernetes-int-or-string"):
        schema["type"] = ["integer", "string"]
    if "properties" in schema:
        schema["properties"] = {name: closed(value) for name, value in schema["properties"].items()}
    for key in ("items", "additionalProperties"):
        if key in schema:
            schema[key] = closed(schema[key])
    is_open = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
    if schema.get("type") == "object" and "properties" in schema and not is_open:
        schema["additionalProperties"] = False
    if top:
        # What every object has, which definitions leave to Kubernetes.
        text = {"type": "string"}
        schema["properties"]["metadata"] = {
            "type": "object",
            "properties": {
                "name": text,
                "namespace": text,
                "labels": {"type": "object", "additionalProperties": text},
                "annotations": {"type": "object", "additionalProperties": text},
            },
            "required": ["name"],
            "additionalProperties": False,
        }
    return schema


def check(path, manifest, schemas):
    of = manifest["apiVersion"], manifest["kind"]
    if of not in schemas:
        print(f"FAILS    {path}: no definition of {' '.join(of)} is in the folder")
        return 1
    validator = jsonschema.Draft7Validator(schemas[of])
    errors = list(validator.iter_errors(manifest))
    for error in errors:
        print(f"FAILS    {path}: {'.'.join(map(str, error.absolute_path))}: {error.message[:200]}")
    if errors:
        return 1
    places = [place for place in keys(manifest) if is_checked(place)]
    missed = [place for place in places if not validator_refuses(validator, manifest, place)]
    for place in missed:
        print(f"FAILS    {path}: {'.'.join(map(str, place))}, misspelt, is not refused")
    print(f"holds    {path}: valid as {' '.join(of)}; {len(places) - len(missed)} of {len(places)} keys are refused if misspelt")
    return 1 if missed else 0


def keys(value, place=()):
    """Yields the path of each key."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*place, key)
            yield from keys(inner, (*place, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from keys(inner, (*place, index))


def is_checked(place):
    """Whether a definition knows the names of this object's keys: those of resources, labels and replicas are free."""
    return not {"requests", "limits", "labels", "annotations", "nodeSelector"} & set(place[:-1]) and place[-2:-1] != ("pytorchReplicaSpecs",)


def validator_refuses(validator, manifest, place):
    wrong = copy.deepcopy(manifest)
    inner = wrong
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1] + "x"] = inner.pop(place[-1])
    return not validator.is_valid(wrong)


if __name__ == "__main__":
    main()

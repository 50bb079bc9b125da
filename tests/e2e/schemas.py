"""Random JSON Schemas of what docs/api.md says is enforced."""

import random

WORDS = ["a", "name", "tags", "x y", 'quo"te', "größe", "id", "items", "value", "kind"]
FORMATS = ["date", "time", "date-time", "duration", "uuid", "ipv4", "ipv6", "email", "hostname", "uri", "uri-reference",
           "uri-template", "json-pointer", "relative-json-pointer", "something-else"]
PATTERNS = ["^[a-z]{2,5}$", "^[0-9]{3}-[0-9]{2}$", "^(on|off)$", "^\\d+\\.\\d$", "^[A-F0-9]{4}$"]


class Maker:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.definitions = {}

    def some(self, *functions):
        return self.random.choice(functions)()

    def chance(self, share):
        return self.random.random() < share

    def schema(self, depth):
        simple = [self.string, self.integer, self.number, self.boolean, self.null, self.enum, self.const]
        if depth == 0:
            return self.some(*simple)
        return self.some(*simple, self.types, self.one_of, lambda: self.object(depth), lambda: self.object(depth),
                         lambda: self.array(depth), lambda: self.any_of(depth), lambda: self.reference(depth))

    def string(self):
        result = {"type": "string"}
        if self.chance(0.2):
            result["pattern"] = self.random.choice(PATTERNS)
        elif self.chance(0.2):
            result["format"] = self.random.choice(FORMATS)
        else:
            low = self.random.randint(0, 4)
            result["maxLength"] = low + self.random.randint(0, 8)
            if self.chance(0.5):
                result["minLength"] = low
        return result

    def integer(self):
        result = {"type": "integer"}
        low = self.random.randint(-200, 200)
        if self.chance(0.4):
            result[self.random.choice(["minimum", "exclusiveMinimum"])] = low
        if self.chance(0.4):
            result[self.random.choice(["maximum", "exclusiveMaximum"])] = low + self.random.randint(5, 5000)
        if len(result) == 1 and self.chance(0.3):
            result["multipleOf"] = self.random.randint(2, 12)
        return result

    def number(self):
        result = {"type": "number"}
        low = self.random.randint(-50, 50) / 4
        if self.chance(0.4):
            result["minimum"] = low
        if self.chance(0.4):
            result["maximum"] = low + self.random.randint(1, 400) / 4
        return result

    def boolean(self):
        return {"type": "boolean"}

    def null(self):
        return {"type": "null"}

    def value(self):
        return self.random.choice([1, -3, 2.5, True, None, "red", 'a "b" \\', "é\n", [1, "x"], {"k": 1}])

    def const(self):
        return {"const": self.value()}

    def enum(self):
        return {"enum": [self.value() for _ in range(self.random.randint(1, 4))]}

    def types(self):
        return {"type": self.random.sample(["integer", "boolean", "null", "string"], 2), "maxLength": 4}

    def any_of(self, depth):
        return {"anyOf": [self.schema(depth - 1) for _ in range(self.random.randint(1, 3))], "description": "one of them"}

    def one_of(self):
        if self.chance(0.5):
            return {"oneOf": [{"type": "integer"}, {"type": "boolean"}, {"type": "null"}]}
        return {"oneOf": [{"type": "object", "properties": {"kind": {"const": kind}, "value": self.integer()},
                           "required": ["kind"], "additionalProperties": False} for kind in ("cat", "dog")]}

    def reference(self, depth):
        name = "d%d" % len(self.definitions)
        self.definitions[name] = {}
        self.definitions[name] = self.schema(depth - 1)
        if "$ref" in self.definitions[name]:
            self.definitions[name] = {"type": "boolean"}
        return {"$ref": "#/$defs/" + name}

    def array(self, depth):
        result = {"type": "array"}
        if self.chance(0.2):
            result["prefixItems"] = [self.schema(depth - 1) for _ in range(self.random.randint(1, 2))]
            result["items"] = False if self.chance(0.5) else self.schema(depth - 1)
            if result["items"] is not False:
                result["maxItems"] = 4
            return result
        result["items"] = self.schema(depth - 1)
        low = self.random.randint(0, 2)
        result["maxItems"] = low + self.random.randint(0, 2)
        if self.chance(0.5):
            result["minItems"] = low
        return result

    def object(self, depth):
        if self.chance(0.1):
            return {"type": "object", "additionalProperties": False,
                    "patternProperties": {"^[a-z]{1,3}$": self.schema(depth - 1)}, "maxProperties": 3}
        names = self.random.sample(WORDS, self.random.randint(0, 4))
        result = {"type": "object", "properties": {name: self.schema(depth - 1) for name in names}}
        result["required"] = [name for name in names if self.chance(0.5)]
        result["additionalProperties"] = False
        plain = all(name.isascii() and '"' not in name for name in names)
        if self.chance(0.15) and plain:
            result["additionalProperties"] = self.schema(0) if self.chance(0.5) else True
            result["maxProperties"] = len(names) + 2
        return result


def make(seed):
    maker = Maker(seed)
    schema = maker.object(3) if maker.chance(0.7) else maker.schema(3)
    if maker.definitions:
        schema = dict(schema)
        schema["$defs"] = maker.definitions
    return schema

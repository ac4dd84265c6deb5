"""Build functions of loops and vectors in LLVM IR, and compile them to machine code.

Only what writes machine code imports this file, and only this file imports llvmlite: LLVM as a package, so that no
compiler has to be installed.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeAlias

from llvmlite import binding as llvm
from llvmlite import ir

BIT, NUMBER, FLOAT = ir.IntType(1), ir.IntType(64), ir.FloatType()
NUMBERS, FLOATS = NUMBER.as_pointer(), FLOAT.as_pointer()
Value: TypeAlias = ir.Value
Values: TypeAlias = Sequence[ir.Value]

_HINT = ir.IntType(32)
_FLAGS = '"no-jump-tables"="true" "no-builtins" "prefer-vector-width"="512"'  # no tables, no calls: code alone


class Assembler:
    """A module of functions; the first one made is where its code begins."""

    def __init__(self) -> None:
        self._module = ir.Module("code")

    def intrinsic(self, name: str, returned: ir.Type, arguments: Sequence[ir.Type]) -> Value:
        """Return an operation that LLVM knows by name."""
        known = self._module.globals.get(name)
        return known or ir.Function(self._module, ir.FunctionType(returned, arguments), name)

    def function(
        self, name: str, arguments: Sequence[ir.Type], *, lanes: int = 1, entry: bool = False
    ) -> tuple["Builder", Values]:
        """Begin a function that returns nothing, on vectors of `lanes` float32 numbers.

        Returns what builds it, and its arguments.
        """
        function = ir.Function(self._module, ir.FunctionType(ir.VoidType(), arguments), name)
        function.linkage = "external" if entry else "internal"
        for attribute in ("noinline", "nounwind"):
            function.attributes.add(attribute)
        return Builder(function, self, lanes), function.args

    def code(self, *, processor: str = "") -> bytes:
        """Compile for a processor, by LLVM's name of it; this one if none is named.

        Raises RuntimeError if the result is not code alone: what refers to something outside cannot be copied.
        """
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        machine = llvm.Target.from_default_triple().create_target_machine(
            cpu=processor or llvm.get_host_cpu_name(),
            features="" if processor else llvm.get_host_cpu_features().flatten(),
            opt=3,
            reloc="pic",
            codemodel="small",
        )
        module = llvm.parse_assembly(str(self._module).replace(" nounwind\n", f" nounwind {_FLAGS}\n"))
        module.verify()
        options = llvm.create_pipeline_tuning_options(speed_level=3)
        options.loop_unrolling = False  # what is to be unrolled is
        passes = llvm.create_pass_builder(machine, options)
        passes.getModulePassManager().run(module, passes)
        compiled = llvm.ObjectFileRef.from_data(machine.emit_object(module))
        sections = {section.name().decode(): section.data() for section in compiled.sections() if section.size()}
        beside = [name for name in sections if name.startswith((".rela", ".rodata", ".data", ".bss", ".ldata"))]
        if beside or ".text" not in sections:
            raise RuntimeError(
                f"compiled for {processor or 'this processor'} it needs {', '.join(beside) or 'no code'}"
            )
        return bytes(sections[".text"])


def constant(value: int) -> Value:
    """A number that is known now."""
    return ir.Constant(NUMBER, value)


class Builder(ir.IRBuilder):
    """LLVM's instructions, and loops and vectors made of them."""

    def __init__(self, function: ir.Function, assembler: Assembler, lanes: int) -> None:
        super().__init__(function.append_basic_block("begin"))
        self._assembler, self.lanes = assembler, lanes
        self.vector = ir.VectorType(FLOAT, self.lanes)
        self.zeros = ir.Constant(self.vector, [0.0] * self.lanes)

    @contextmanager
    def loop(self, start: Value, stop: Value, step: int | Value = 1) -> Iterator[Value]:
        """For each number from `start` on, in steps, while it is below `stop`."""
        head, body, after = (self.append_basic_block(name) for name in ("head", "body", "after"))
        before = self.block
        self.branch(head)
        self.position_at_end(head)
        number = self.phi(NUMBER)
        number.add_incoming(start, before)
        self.cbranch(self.is_below(number, stop), body, after)
        self.position_at_end(body)
        yield number
        number.add_incoming(self.add(number, constant(step) if isinstance(step, int) else step), self.block)
        self.branch(head)
        self.position_at_end(after)

    def carried(self, stop: Value, values: Values, body: Callable[[Value, Values], Values]) -> Values:
        """For each number from 0 on, at least once, make values of the values before; return the last ones."""
        block, after = self.append_basic_block("carry"), self.append_basic_block("carried")
        before = self.block
        self.branch(block)
        self.position_at_end(block)
        number = self.phi(NUMBER)
        number.add_incoming(constant(0), before)
        old = [self.phi(value.type) for value in values]
        new = body(number, old)
        following = self.add(number, constant(1))
        for phi, first, then in zip((number, *old), (None, *values), (following, *new), strict=True):
            if first is not None:
                phi.add_incoming(first, before)
            phi.add_incoming(then, self.block)
        self.cbranch(self.is_below(following, stop), block, after)
        self.position_at_end(after)
        return new

    def choose(self, value: Value, cases: dict[int, Callable[[], None]]) -> None:
        """Do what stands for the value, nothing if it is not among the cases."""
        end = self.append_basic_block("chosen")
        switch = self.switch(value, end)
        for number, case in cases.items():
            block = self.append_basic_block(f"case{number}")
            switch.add_case(constant(number), block)
            self.position_at_end(block)
            case()
            self.branch(end)
        self.position_at_end(end)

    def at(self, base: Value, *places: Value | int) -> Value:
        """The address `base` plus a number of elements."""
        for lane_place in places:
            base = self.gep(base, [constant(lane_place) if isinstance(lane_place, int) else lane_place])
        return base

    def is_below(self, one: Value, other: Value) -> Value:
        return self.icmp_signed("<", one, other)

    def least(self, one: Value, other: Value) -> Value:
        return self.select(self.is_below(one, other), one, other)

    def read(self, base: Value, vector: int = 0) -> Value:
        """Load the vector that stands `vector` vectors on; no address has to be aligned."""
        address = self.at(base, vector * self.lanes)
        return self.load(self.bitcast(address, self.vector.as_pointer()), align=4)

    def write(self, value: Value, base: Value, vector: int = 0) -> None:
        """Store a vector where `read` finds it."""
        address = self.at(base, vector * self.lanes)
        self.store(value, self.bitcast(address, self.vector.as_pointer()), align=4)

    def everywhere(self, address: Value) -> Value:
        """Load one number into all places of a vector."""
        undefined = ir.Constant(self.vector, ir.Undefined)
        first_lane = self.insert_element(undefined, self.load(address), ir.Constant(ir.IntType(32), 0))
        return self.shuffle(first_lane, undefined, [0] * self.lanes)

    def fetch(self, address: Value) -> None:
        """Ask for the cache line at an address to be brought to the second-level cache; no address is wrong."""
        prefetch = self._assembler.intrinsic("llvm.prefetch.p0", ir.VoidType(), [FLOATS, *[_HINT] * 3])
        self.call(prefetch, [address, *(ir.Constant(_HINT, hint) for hint in (0, 2, 1))])

    def multiply_add(self, one: Value, other: Value, total: Value) -> Value:
        """Add a product to a total, rounded once."""
        name = f"llvm.fma.v{self.lanes}f32"
        return self.call(self._assembler.intrinsic(name, self.vector, [self.vector] * 3), [one, other, total])

    def shuffle(self, one: Value, other: Value, places: Sequence[int]) -> Value:
        return self.shuffle_vector(one, other, ir.Constant(ir.VectorType(ir.IntType(32), len(places)), list(places)))

    def row(self, table: Value, index: Value, stride: Value) -> Value:
        """The address of a table's row whose number stands at an address."""
        return self.at(table, self.mul(self.load(index), stride))

    def sum_in_registers(
        self,
        rows: Values,
        width: int,
        stop: Value,
        add: Callable[[Value, Values], Values],
        *,
        anew: Value,
        zeros: Value,
    ) -> None:
        """Add to rows of `width` vectors, at these addresses, what `add(number, sums)` adds for those below `stop`.

        If `anew` says so, to the row of `zeros` instead: what stands in the rows is not read.
        """
        starts = [self.select(anew, zeros, row) for row in rows]
        sums = self.carried(stop, [self.read(start, j) for start in starts for j in range(width)], add)
        for i, row in enumerate(rows):
            for j in range(width):
                self.write(sums[i * width + j], row, j)

    def some_at_a_time(self, start: Value, stop: Value, most: int, body: Callable[[Value, int], None]) -> None:
        """Do `body(first, count)` for `most` numbers at a time, then for those left."""
        left = self.srem(self.sub(stop, start), constant(most))
        full = self.sub(stop, left)
        with self.loop(start, full, most) as first:
            body(first, most)
        self.choose(left, {count: partial(body, full, count) for count in range(1, most)})

    def scratch(self, count: int, kind: ir.Type = FLOAT) -> Value:
        """Allocate `count` numbers on the thread's own stack."""
        room = self.alloca(ir.ArrayType(kind, count))
        room.align = 64
        return self.bitcast(room, kind.as_pointer())

    def row_of_zeros(self, width: int) -> Value:
        """A row of `width` vectors on the thread's own stack, all zeros."""
        row = self.scratch(width * self.lanes)
        for j in range(width):
            self.write(self.zeros, row, j)
        return row

    def transposed(self, rows: Values) -> Values:
        """Transpose as many vectors as a vector has numbers.

        Within each 128 bits first, then these among each other: in steps for which processors have an instruction.
        """
        lanes = self.lanes
        quarters = range(0, lanes, 4)

        def within(one: Value, other: Value, places: Sequence[int]) -> Value:
            return self.shuffle(one, other, [q + p if p < 4 else lanes + q + p - 4 for q in quarters for p in places])

        columns: list[list[Value]] = []  # by group of four rows, by number within 128 bits
        for first in range(0, lanes, 4):
            low = [within(rows[first + k], rows[first + k + 1], (0, 4, 1, 5)) for k in (0, 2)]
            high = [within(rows[first + k], rows[first + k + 1], (2, 6, 3, 7)) for k in (0, 2)]
            columns.append(
                [within(pair[0], pair[1], places) for pair in (low, high) for places in ((0, 1, 4, 5), (2, 3, 6, 7))]
            )

        def quads(one: Value, other: Value, places: Sequence[int]) -> Value:
            return self.shuffle(one, other, [4 * p + k for p in places for k in range(4)])

        found: list[Value] = [None] * lanes
        for number in range(4):
            column_group = [group[number] for group in columns]
            if lanes == 8:
                found[number], found[4 + number] = (
                    quads(column_group[0], column_group[1], (0, 2)),
                    quads(column_group[0], column_group[1], (1, 3)),
                )
                continue
            even = [quads(column_group[k], column_group[k + 1], (0, 2, 4, 6)) for k in (0, 2)]
            odd = [quads(column_group[k], column_group[k + 1], (1, 3, 5, 7)) for k in (0, 2)]
            for first_row, pair in ((0, even), (1, odd)):
                found[4 * first_row + number] = quads(pair[0], pair[1], (0, 2, 4, 6))
                found[4 * (first_row + 2) + number] = quads(pair[0], pair[1], (1, 3, 5, 7))
        return found

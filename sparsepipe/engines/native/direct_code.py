"""Machine code for convolution: input rows are read in place, multiplied in registers, added to the output rows.

`python -m sparsepipe.engines.native.direct_code LANES` writes the code for this machine's processor, vectors of LANES
float32 numbers or half of them, to standard output; direct.py keeps and calls it. Nothing of LLVM stays in
processes that train.

The code is one function, which all threads of a team call with the same int64 arguments (direct.py names them). They
take tasks from a counter. No two tasks write to the same place, and what a sum adds up, and in which order, does not
depend on how the work was divided: the same bits come out whatever the number of threads, and of lanes.

    convolve   A task is a tile of output rows and a block of columns. Offset by offset, some of the matrix's rows at a
               time, it packs the block's columns into scratch memory that the first-level cache holds. Then the tile's
               pairs, a few at a time, take their output rows into registers (zeros, where a row has no other pair), add
               inputs times scratch, and put them back; meanwhile what is to be packed next comes nearer. The features'
               gradient is the same with a matrix that is transposed as it is packed.
    gradient   A task is an offset, a block of its matrix's rows and one of columns, to which it adds, a few rows in
               registers at a time, the outer products of some of the offset's pairs.

What stays in registers and what in which cache follows Goto and van de Geijn, "Anatomy of High-Performance Matrix
Multiplication", ACM TOMS 34(3), 2008, sections 4 and 5.
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace

from .assembler import BIT, FLOATS, NUMBER, NUMBERS, Assembler, Builder, Value, Values, constant
from .direct import CONVOLVE, GRADIENT, LANES, MOST_INPUTS, columns_at_a_time, operation

_ADDRESSES = dict.fromkeys(("in_rows", "out_rows", "starts"), NUMBERS)
_ADDRESSES |= dict.fromkeys(("features", "kernel", "gradients", "output"), FLOATS)
_LINE = 16  # numbers of a cache line
_PAIRS = 96  # whose rows the first- and second-level caches hold
_MOST_ROWS = 8  # in registers at a time: each has an address in a register, too


class Direct(Assembler):
    """The code for a processor whose vectors have some number of lanes: for these, and for half of them."""

    def __init__(self, lanes: int) -> None:
        super().__init__()
        b, (arguments,) = self.function("entry", [NUMBERS], entry=True)
        kinds = ("convolve", CONVOLVE, _convolve), ("gradient", GRADIENT, _gradient)
        workers = {
            operation(lane_count, name): self._worker(names, work, lane_count)
            for lane_count in LANES
            if lane_count <= lanes
            for name, names, work in kinds
        }
        chosen = b.load(b.at(arguments, CONVOLVE.index("operation")))
        b.choose(chosen, {number: partial(b.call, worker, [arguments]) for number, worker in workers.items()})
        b.ret_void()

    def _worker(self, names: Sequence[str], work: Callable[..., None], lanes: int) -> Value:
        """Make a function that takes tasks until there are none, each a row of blocks and a block of columns."""
        name, by_width = f"{work.__name__}_{lanes}", {}
        for width in range(1, columns_at_a_time(lanes) // lanes + 1):
            kinds = [NUMBERS, NUMBER, NUMBER]
            b, (arguments, row, column) = self.function(f"{name}_{width}", kinds, lanes=lanes)
            values = {key: b.load(b.at(arguments, name_index)) for name_index, key in enumerate(names)}
            values |= {key: b.inttoptr(values[key], kind) for key, kind in _ADDRESSES.items() if key in values}
            work(b, width, SimpleNamespace(**values), row, column)
            b.ret_void()
            by_width[width] = b.function
        b, (arguments,) = self.function(name, [NUMBERS])
        num_tasks, num_columns = (b.load(b.at(arguments, names.index(key))) for key in ("num_tasks", "num_outputs"))
        block = constant(columns_at_a_time(lanes))
        num_blocks = b.sdiv(b.add(num_columns, b.sub(block, constant(1))), block)
        following, some, done = (b.append_basic_block(key) for key in ("next", "task", "done"))
        b.branch(following)
        b.position_at_end(following)
        task = b.atomic_rmw("add", arguments, constant(1), "monotonic")  # the first argument counts
        b.cbranch(b.is_below(task, num_tasks), some, done)
        b.position_at_end(done)
        b.ret_void()
        b.position_at_end(some)
        row, column = b.sdiv(task, num_blocks), b.mul(b.srem(task, num_blocks), block)
        width = b.sdiv(b.least(block, b.sub(num_columns, column)), constant(lanes))
        b.choose(width, {k: partial(b.call, function, [arguments, row, column]) for k, function in by_width.items()})
        b.branch(following)
        return b.function


def _rows(lanes: int, width: int) -> int:
    """Return how many rows of `width` vectors stay in registers, in addition to the vectors that are added to them."""
    registers = 32 if lanes == 16 else 16
    return min(_MOST_ROWS, (registers - width - 2) // width)


def _convolve(b: Builder, width: int, given: SimpleNamespace, tile: Value, column: Value) -> None:
    """Make a tile's output rows, `width` vectors of each from a column on."""
    scratch, zeros = b.scratch(MOST_INPUTS * width * b.lanes), b.row_of_zeros(width)
    output = b.at(given.output, column)
    start_row = b.mul(tile, given.tile_rows)
    num_rows = b.least(given.tile_rows, b.sub(given.num_rows, start_row))
    once = b.trunc(given.once, BIT)
    rows_to_clear = b.select(once, constant(0), num_rows)
    _clear(b, b.at(output, b.mul(start_row, given.num_outputs)), width, rows_to_clear, given.num_outputs)
    transposed = b.trunc(given.transposed, BIT)
    input_step, column_step = (
        b.select(transposed, *steps) for steps in ((constant(1), given.row_stride), (given.row_stride, constant(1)))
    )
    with b.loop(constant(0), given.num_offsets) as offset:
        pairs = b.at(given.starts, b.mul(offset, b.add(given.num_tiles, constant(1))), tile)
        first, last = b.load(pairs), b.load(b.at(pairs, 1))
        columns = b.at(given.kernel, b.mul(offset, given.offset_stride), b.mul(column, column_step))
        stop = b.select(b.is_below(first, last), given.num_inputs, constant(0))
        with b.loop(constant(0), stop, given.inputs_at_a_time) as start:
            count = b.least(given.inputs_at_a_time, b.sub(given.num_inputs, start))
            block = b.at(columns, b.mul(start, input_step))
            packs = [
                partial(pack_function, b, scratch, block, width, count, given.row_stride)
                for pack_function in (_pack, _pack_transposed)
            ]
            b.choose(given.transposed, dict(enumerate(packs)))
            following = b.add(start, count)
            next_inputs = b.at(columns, b.mul(following, input_step))
            ahead = b.select(b.is_below(following, stop), next_inputs, b.at(columns, given.offset_stride))
            features = b.at(given.features, start)
            anew = b.and_(once, b.icmp_signed("==", start, constant(0)))

            def some(
                pair: Value,
                number: int,
                features: Value = features,
                count: Value = count,
                ahead: Value = ahead,
                anew: Value = anew,
            ) -> None:
                in_rows, out_rows = b.at(given.in_rows, pair), b.at(given.out_rows, pair)  # no row is there twice
                inputs = [b.row(features, b.at(in_rows, i), given.num_inputs) for i in range(number)]
                outputs = [b.row(output, b.at(out_rows, i), given.num_outputs) for i in range(number)]
                before = b.mul(b.sdiv(b.sub(pair, first), constant(_rows(b.lanes, width))), count)

                def multiply(place: Value, sums: Values) -> Values:
                    _fetch(b, ahead, b.add(before, place), given)
                    panel = b.at(scratch, b.mul(place, constant(width * b.lanes)))
                    return _outer_product(b, sums, [b.at(row, place) for row in inputs], panel, width)

                b.sum_in_registers(outputs, width, count, multiply, anew=anew, zeros=zeros)

            b.some_at_a_time(first, last, _rows(b.lanes, width), some)


def _gradient(b: Builder, width: int, given: SimpleNamespace, row: Value, column: Value) -> None:
    """Make a block of an offset's gradient, `width` vectors of each row; `row` counts offsets and blocks of rows."""
    inputs, gradients = b.scratch(_PAIRS, FLOATS), b.scratch(_PAIRS, FLOATS)  # where the rows of pairs stand
    zeros = b.row_of_zeros(width)
    offset = b.sdiv(row, given.num_blocks)
    start = b.mul(b.srem(row, given.num_blocks), given.block_inputs)
    count = b.least(given.block_inputs, b.sub(given.num_inputs, start))
    matrix = b.at(given.output, b.mul(offset, b.mul(given.num_inputs, given.num_outputs)))
    matrix = b.at(matrix, b.mul(start, given.num_outputs), column)
    pairs = b.at(given.starts, offset)
    first, last = b.load(pairs), b.load(b.at(pairs, 1))
    _clear(b, matrix, width, b.select(b.is_below(first, last), constant(0), count), given.num_outputs)
    with b.loop(first, last, _PAIRS) as pair:
        number = b.least(constant(_PAIRS), b.sub(last, pair))
        with b.loop(constant(0), number) as place:
            in_row = b.at(b.row(given.features, b.at(given.in_rows, pair, place), given.num_inputs), start)
            out_row = b.at(b.row(given.gradients, b.at(given.out_rows, pair, place), given.num_outputs), column)
            b.store(in_row, b.at(inputs, place))
            b.store(out_row, b.at(gradients, place))

        anew = b.icmp_signed("==", pair, first)

        def some(place: Value, rows: int, number: int = number, anew: Value = anew) -> None:
            def multiply(pair: Value, sums: Values) -> Values:
                in_row, out_row = b.at(b.load(b.at(inputs, pair)), place), b.load(b.at(gradients, pair))
                return _outer_product(b, sums, [b.at(in_row, i) for i in range(rows)], out_row, width)

            sums = [b.at(matrix, b.mul(b.add(place, constant(i)), given.num_outputs)) for i in range(rows)]
            b.sum_in_registers(sums, width, number, multiply, anew=anew, zeros=zeros)

        b.some_at_a_time(constant(0), count, _rows(b.lanes, width), some)


def _clear(b: Builder, rows: Value, width: int, count: Value, stride: Value) -> None:
    """Put zeros where rows of `width` vectors stand."""
    with b.loop(constant(0), count) as row:
        for j in range(width):
            b.write(b.zeros, b.at(rows, b.mul(row, stride)), j)


def _outer_product(b: Builder, sums: Values, numbers: Values, vectors: Value, width: int) -> Values:
    """Add to the sums, row by row, the number at each address times all of `width` vectors at another."""
    products, read = [], [b.read(vectors, j) for j in range(width)]
    for i, address in enumerate(numbers):
        number = b.everywhere(address)
        for j, vector in enumerate(read):
            products.append(b.multiply_add(number, vector, sums[i * width + j]))
    return products


def _fetch(b: Builder, ahead: Value, line: Value, given: SimpleNamespace) -> None:
    """Have a line of the panel to be packed next brought near, one at each step: deep layers' matrices are in no cache.

    It stands in 128 rows of 64 columns, or, of a transposed matrix, in 64 rows of 128.
    """
    lines = b.add(given.transposed, constant(2))  # of a row: 4 or 8, as a power of two
    row, own = b.ashr(line, lines), b.and_(line, b.sub(b.shl(constant(1), lines), constant(1)))
    b.fetch(b.at(ahead, b.mul(row, given.row_stride), b.mul(own, constant(_LINE))))


def _pack(b: Builder, scratch: Value, matrix: Value, width: int, count: Value, stride: Value) -> None:
    """Put a matrix's rows, `width` vectors of each, one behind the other."""
    with b.loop(constant(0), count) as row:
        given, taken = b.at(matrix, b.mul(row, stride)), b.at(scratch, b.mul(row, constant(width * b.lanes)))
        for j in range(width):
            b.write(b.read(given, j), taken, j)


def _pack_transposed(b: Builder, scratch: Value, matrix: Value, width: int, count: Value, stride: Value) -> None:
    """Put a matrix's columns, `width` vectors of each, one behind the other; `count` fills whole vectors."""
    with b.loop(constant(0), count, b.lanes) as column:
        taken = b.at(scratch, b.mul(column, constant(width * b.lanes)))
        for j in range(width):
            rows = (b.at(matrix, b.mul(constant(j * b.lanes + i), stride), column) for i in range(b.lanes))
            for i, vector in enumerate(b.transposed([b.read(row) for row in rows])):
                b.write(vector, taken, i * width + j)


if __name__ == "__main__":
    sys.stdout.buffer.write(Direct(int(sys.argv[1])).code())

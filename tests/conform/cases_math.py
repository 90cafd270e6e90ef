"""Elementwise ops, products, reductions, linear algebra, complex numbers and narrow types."""

from __future__ import annotations

import tensorflow as tf

from conform.table import Case, Random, apart, case, complexes, definite, inside, normal, positive, simple

CASES: list[Case] = []

CASES += [
    simple("sin_cos", lambda x: tf.sin(x) * tf.cos(x), normal(2, 3)),
    simple("tan_atan", lambda x: tf.tan(x) + tf.atan(x), inside(4)),
    simple("asin_acos", lambda x: tf.asin(x) * tf.acos(x), inside(4)),
    simple("sinh_cosh_tanh", lambda x: tf.sinh(x) * tf.cosh(x) + tf.tanh(x), normal(3)),
    simple(
        "asinh_acosh_atanh",
        lambda x, y: tf.asinh(x) + tf.acosh(y + 1.0) + tf.atanh(x),
        inside(3),
        positive(3),
    ),
    simple("exp_log", lambda x: tf.exp(x) + tf.math.log(x) + tf.math.log1p(x) + tf.math.expm1(x), positive(5)),
    simple("sqrt_rsqrt", lambda x: tf.sqrt(x) + tf.math.rsqrt(x), positive(5)),
    simple("square_reciprocal", lambda x: tf.square(x) * tf.math.reciprocal(x + 2.0), positive(5)),
    simple("abs_sign", lambda x: tf.abs(x) * tf.sign(x) * x, normal(5)),
    simple("floor_ceil_round", lambda x: x * tf.floor(x) + tf.math.ceil(x) + tf.round(x), normal(5)),
    simple("sigmoid_softplus", lambda x: tf.sigmoid(x) * tf.math.softplus(x), normal(5)),
    simple("erf_erfc", lambda x: tf.math.erf(x) - tf.math.erfc(2.0 * x), normal(5)),
    simple("erfinv_ndtri", lambda x: tf.math.erfinv(x) + tf.math.ndtri(0.5 + 0.4 * x), inside(5)),
    simple("lgamma_digamma", lambda x: tf.math.lgamma(x) + tf.math.digamma(x), positive(5)),
    simple("igamma", lambda a, x: tf.math.igamma(a, x) + tf.math.igammac(a, x + 1.0), positive(4), positive(4)),
    simple("betainc", lambda x: tf.math.betainc(tf.constant(2.0), tf.constant(3.0), x * 0.5), positive(3)),
    simple("bessel", lambda x: tf.math.bessel_i0(x) + tf.math.bessel_i1e(x), positive(4)),
    simple("polygamma_zeta", lambda x: tf.math.polygamma(1.0, x) + tf.math.zeta(x + 2.0, x), positive(3)),
    simple("pow_both", lambda x, y: x**y, positive(2, 3), normal(2, 3)),
    simple("pow_scalar", lambda x: x**3 + 2.0**x, normal(4)),
    simple("divide_no_nan", lambda x, y: tf.math.divide_no_nan(x, y * [0.0, 1.0]), normal(2), positive(2)),
    simple("divide_real", lambda x, y: x / y - x // y, normal(2, 3), positive(3)),
    simple("xlogy_xdivy", lambda x, y: tf.math.xlogy(x, y) + tf.math.xdivy(x, y), positive(4), positive(4)),
    simple("atan2", tf.atan2, normal(4), positive(4)),
    simple("mod", lambda x, y: tf.math.floormod(x, y), normal(4), positive(4)),
    simple("maximum_minimum", lambda x, y: tf.maximum(x, y) * tf.minimum(x, 0.3), normal(2, 3), normal(3)),
    simple("clip_by_value", lambda x: tf.clip_by_value(x, -0.5, 0.5), normal(8)),
    simple("clip_by_norm", lambda x: tf.clip_by_norm(x, 0.5), normal(8)),
    simple("global_norm", lambda x, y: tf.linalg.global_norm([x, y]), normal(3), normal(2)),
    simple("clip_by_global_norm", lambda x, y: tf.clip_by_global_norm([x, y], 0.1)[0], normal(3), normal(2)),
    simple("squared_difference", tf.math.squared_difference, normal(2, 1), normal(3)),
    simple("add_n", lambda x, y: tf.add_n([x, y, x * y, x]), normal(3), normal(3)),
    simple("negative_subtract", lambda x, y: -(x - y) - 2.0 * x, normal(3), normal(1)),
    simple("broadcast_ranks", lambda x, y, z: x * y + z, normal(2, 1, 3), normal(4, 1), normal()),
    simple("broadcast_to", lambda x: tf.broadcast_to(x, [4, 2, 3]) * 2.0, normal(2, 1)),
    simple("same_operand_twice", lambda x: x * x + x @ x, normal(3, 3)),
    simple("cast_there_and_back", lambda x: tf.cast(tf.cast(x, tf.float64) ** 2, tf.float32), normal(4)),
    simple("cast_through_int", lambda x: x * tf.cast(tf.cast(x, tf.int32), tf.float32), normal(4)),
]

CASES += [
    simple("matmul", tf.matmul, normal(2, 3), normal(3, 4)),
    simple(
        "matmul_adjoint",
        lambda a, b: tf.matmul(a, b, transpose_a=True, adjoint_b=True),
        normal(3, 2),
        normal(4, 3),
    ),
    simple("matmul_batch", tf.matmul, normal(5, 2, 3), normal(5, 3, 4)),
    simple("matmul_broadcast", tf.matmul, normal(5, 1, 2, 3), normal(4, 3, 2)),
    simple("matvec", tf.linalg.matvec, normal(2, 3), normal(3)),
    simple("tensordot", lambda a, b: tf.tensordot(a, b, [[1, 2], [0, 1]]), normal(2, 3, 4), normal(3, 4, 5)),
    simple("einsum_two", lambda a, b: tf.einsum("bij,bkj->bik", a, b), normal(2, 3, 4), normal(2, 5, 4)),
    simple("einsum_diagonal", lambda a: tf.einsum("ii->i", a), normal(3, 3)),
    simple(
        "einsum_three",
        lambda a, b, c: tf.einsum("ab,bc,cd->ad", a, b, c),
        normal(2, 3),
        normal(3, 4),
        normal(4, 2),
    ),
    simple("cross", tf.linalg.cross, normal(2, 3), normal(2, 3)),
    simple("reduce_sum_axis", lambda x: tf.reduce_sum(x, [0, 2], keepdims=True) ** 2, normal(2, 3, 4)),
    simple("reduce_mean", lambda x: tf.reduce_mean(x, 1) ** 2 + tf.reduce_mean(x), normal(2, 3)),
    simple("reduce_prod", lambda x: tf.reduce_prod(x, -1), normal(2, 4)),
    simple("reduce_prod_with_zero", lambda x: tf.reduce_prod(x * [0.0, 1.0, 2.0]), normal(3)),
    simple("reduce_max_min", lambda x: tf.reduce_max(x, 0) - tf.reduce_min(x, 0), normal(4, 3)),
    simple("reduce_max_of_ties", lambda x: tf.reduce_max(tf.round(x) * 0.0 + x[0]), normal(3)),
    simple("reduce_logsumexp", lambda x: tf.math.reduce_logsumexp(x, 1, keepdims=True), normal(2, 5)),
    simple("reduce_std_variance", lambda x: tf.math.reduce_std(x) + tf.math.reduce_variance(x, 0), normal(3, 2)),
    simple("reduce_euclidean_norm", lambda x: tf.math.reduce_euclidean_norm(x, 1), normal(3, 2)),
    simple("cumsum", lambda x: tf.cumsum(x, 1, exclusive=True, reverse=True) ** 2, normal(2, 4)),
    simple("cumprod", lambda x: tf.math.cumprod(x, 0), positive(4, 2)),
    simple("cumulative_logsumexp", lambda x: tf.math.cumulative_logsumexp(x, 1), normal(2, 4)),
    simple("argmax_beside_the_path", lambda x: x * tf.cast(tf.argmax(x, 1), tf.float32)[:, None], apart(3, 4)),
    simple("l2_normalize", lambda x: tf.math.l2_normalize(x, 1), normal(3, 4)),
]

CASES += [
    simple("cholesky", tf.linalg.cholesky, definite(3, 3)),
    simple(
        "cholesky_solve",
        lambda a, b: tf.linalg.cholesky_solve(tf.linalg.cholesky(a), b),
        definite(3, 3),
        normal(3, 2),
    ),
    simple("qr", lambda a: tf.linalg.qr(a)[0] * 2.0 + tf.linalg.qr(a)[1], normal(3, 3), tolerance=1e-5),
    simple("svd_values", lambda a: tf.linalg.svd(a, compute_uv=False), normal(3, 2)),
    simple("svd_of_both", lambda a: tf.linalg.svd(a)[0] ** 2, normal(3, 2)),
    simple("solve", tf.linalg.solve, definite(3, 3), normal(3, 2)),
    simple("lstsq", lambda a, b: tf.linalg.lstsq(a, b, l2_regularizer=0.1), normal(4, 2), normal(4, 1)),
    simple("eigh_values", lambda a: tf.linalg.eigvalsh(a + tf.transpose(a)), normal(3, 3)),
    simple("eigh_vectors", lambda a: tf.linalg.eigh(a)[1] ** 2, definite(3, 3)),
    simple("inverse", tf.linalg.inv, definite(2, 3, 3)),
    simple("det_logdet", lambda a: tf.linalg.det(a) + tf.linalg.logdet(a), definite(3, 3)),
    simple("slogdet", lambda a: tf.linalg.slogdet(a)[1], normal(3, 3)),
    simple("expm", tf.linalg.expm, inside(2, 3, 3), tolerance=1e-5),
    simple(
        "triangular_solve",
        lambda a, b: tf.linalg.triangular_solve(a, b, adjoint=True),
        definite(3, 3),
        normal(3, 2),
    ),
    simple("pinv", tf.linalg.pinv, normal(4, 3), tolerance=1e-5),
    simple(
        "diagonals",
        lambda x: tf.linalg.diag(x, k=1)[:3, :3] + tf.linalg.diag_part(tf.linalg.diag(x)),
        normal(3),
    ),
    simple("band_part_trace", lambda a: tf.linalg.band_part(a, 1, 0) * tf.linalg.trace(a), normal(3, 3)),
    simple("set_diag", lambda a, d: tf.linalg.set_diag(a, d) ** 2, normal(3, 3), normal(3)),
    simple("norms", lambda a: tf.norm(a, axis=1) + tf.norm(a, ord=1) + tf.norm(a), normal(3, 3)),
    simple("tridiagonal_solve", lambda d, b: tf.linalg.tridiagonal_solve(d + 3.0, b), inside(3, 4), normal(4, 1)),
    simple("linear_operator", lambda d, x: tf.linalg.LinearOperatorDiag(d).solvevec(x), positive(3), normal(3)),
]

CASES += [
    simple(
        "complex_parts",
        lambda x, y: tf.abs(tf.complex(x, y)) + tf.math.angle(tf.complex(x, y)),
        normal(4),
        normal(4),
    ),
    simple("complex_product", lambda z, w: z * tf.math.conj(w) + tf.exp(z), complexes(3), complexes(3)),
    simple("complex_matmul", lambda z, w: tf.matmul(z, w, adjoint_b=True), complexes(2, 3), complexes(2, 3)),
    simple("complex_to_real_and_back", lambda z: tf.math.real(z) ** 2 * tf.math.imag(z), complexes(4)),
    simple("fft", lambda x: tf.abs(tf.signal.fft(tf.cast(x, tf.complex64))), normal(2, 8)),
    simple(
        "rfft_irfft",
        lambda x: tf.signal.irfft(tf.signal.rfft(x) * tf.constant(2j, tf.complex64)),
        normal(2, 8),
    ),
    simple("fft2d", lambda z: tf.signal.ifft2d(tf.signal.fft2d(z) * 3.0), complexes(4, 4)),
    simple("stft", lambda x: tf.abs(tf.signal.stft(x, 8, 4)), normal(32)),
    simple("dct", lambda x: tf.signal.dct(x, norm="ortho"), normal(2, 8)),
]


def _powers(x: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.sin(x) * x**2, -1) / tf.cast(3.0, x.dtype)


CASES += [
    simple("float64", _powers, normal(2, 3, dtype="float64")),
    simple("float16", _powers, normal(2, 3, dtype="float16"), tolerance=1e-3),
    simple("bfloat16", _powers, normal(2, 3, dtype="bfloat16"), tolerance=1e-2),
    simple("complex128", _powers, complexes(2, 3, dtype="complex128")),
]


@case(CASES, tolerance=1e-3)
def _mixed_widths(rng: Random):
    def run(x, y):
        return tf.cast(tf.matmul(tf.cast(x, tf.float16), y), tf.float32) * x

    return run, [normal(2, 2)(rng), normal(2, 2, dtype="float16")(rng)]


@case(CASES)
def _half_the_program_is_integers(rng: Random):
    def run(x):
        rank = tf.argsort(tf.argsort(x))
        odd = tf.equal(tf.bitwise.bitwise_and(rank, 1), 1)
        return tf.where(odd, x**2, -x) * tf.cast(rank, x.dtype)

    return run, [apart(6)(rng)]


@case(CASES)
def _long_chain(rng: Random):
    def run(x):
        for _ in range(40):
            x = tf.sin(x) * 1.1 + 0.01
        return x

    return run, [normal(3)(rng)]


@case(CASES)
def _diamonds(rng: Random):
    def run(x):
        for _ in range(6):
            left, right = tf.sin(x), tf.cos(x)
            x = left * right + left
        return x

    return run, [normal(3)(rng)]

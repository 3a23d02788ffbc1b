"""Linear algebra of PyTorch as steps that the engine has: values row by row, gradients by what a small change of the matrix makes of them."""

from __future__ import annotations

from typing import Any

import torch

from plimsoll.errors import PlimsollError

__all__ = ["ALGEBRA"]

aten = torch.ops.aten
#: Each row is a step of its own in a plan.
MOST_ROWS = 256
#: Halvings of a matrix before its exponential is summed, and terms of that sum.
_HALVINGS, _TERMS = 6, 18


def _rows(a: torch.Tensor, what: str) -> int:
    rows = int(a.shape[-1])
    if rows > MOST_ROWS:
        raise PlimsollError(f"{what} of a matrix of {rows} rows is not known here: each row is a step of its own in a plan, and {MOST_ROWS} are the most")
    return rows


def _unit(a: torch.Tensor) -> torch.Tensor:
    return torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)


def _row(a: torch.Tensor, at: int) -> torch.Tensor:
    return a.narrow(-2, at, 1)


def _eliminated(a: torch.Tensor, what: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The inverse, the sign and the logarithm of the size of the determinant, without gradients: Gauss and Jordan, the largest pivot of each column."""
    a = a.detach()
    n = _rows(a, what)
    wide = torch.cat([a, _unit(a).expand(a.shape)], -1)
    places = torch.arange(n, device=a.device)
    sign, size = torch.ones_like(a[..., 0, 0]), torch.zeros_like(a[..., 0, 0])
    for k in range(n):
        column = wide[..., k].abs()
        best = torch.where(places >= k, column, -1.0).argmax(-1)
        # Two rows change places.
        is_best, is_own = (places == best.unsqueeze(-1)).unsqueeze(-1), (places == k).unsqueeze(-1)
        chosen = torch.where(is_best, wide, 0.0).sum(-2, keepdim=True)
        wide = torch.where(is_own, chosen, torch.where(is_best, _row(wide, k), wide))
        pivot = chosen.narrow(-1, k, 1)
        flat = pivot[..., 0, 0]
        sign = sign * flat.sign() * torch.where(best == k, 1.0, -1.0).to(a.dtype)
        size = size + flat.abs().log()
        row = chosen / pivot
        wide = torch.where(is_own, row, wide - wide.narrow(-1, k, 1) * row)
    return wide.narrow(-1, n, n), sign, size


def _inverse(a: torch.Tensor) -> torch.Tensor:
    value, _, _ = _eliminated(a, "the inverse")
    # 2Y - YAY is the inverse where Y is, closer to it than Y was, and has the gradient of one.
    return 2 * value - value @ a @ value


def _change(a: torch.Tensor) -> torch.Tensor:
    """Nothing, with the gradient of the matrix."""
    return a - a.detach()


def _trace_of(value: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    return (value.mT * _change(a)).sum((-2, -1))


def _det(a: torch.Tensor) -> Any:
    value, sign, size = _eliminated(a, "the determinant")
    det = (sign * size.exp()).detach()
    return det + det * _trace_of(value, a), a, torch.zeros(a.shape[:-1], dtype=torch.int32, device=a.device)


def _slogdet(a: torch.Tensor) -> Any:
    value, sign, size = _eliminated(a, "the determinant")
    return sign, size + _trace_of(value, a), a, torch.zeros(a.shape[:-1], dtype=torch.int32, device=a.device)


def _inv_ex(a: torch.Tensor, *, check_errors: bool = False) -> Any:
    return _inverse(a), torch.zeros(a.shape[:-2], dtype=torch.int32, device=a.device)


def _solve_ex(a: torch.Tensor, b: torch.Tensor, *, left: bool = True, check_errors: bool = False) -> Any:
    inverse = _inverse(a)
    is_vector = b.dim() == 1 or (b.dim() == a.dim() - 1 and b.shape == a.shape[:-1])
    rows = b.unsqueeze(-1) if is_vector else b
    made = inverse @ rows if left else rows @ inverse
    info = torch.zeros(a.shape[:-2], dtype=torch.int32, device=a.device)
    return made.squeeze(-1) if is_vector else made, a, torch.zeros(a.shape[:-1], dtype=torch.int32, device=a.device), info


def _triangular(a: torch.Tensor, b: torch.Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False) -> torch.Tensor:
    a = a.triu() if upper else a.tril()
    if unitriangular:
        a = a - torch.diag_embed(a.diagonal(dim1=-2, dim2=-1)) + _unit(a)
    inverse = _triangle_inverse(a.mT).mT if upper else _triangle_inverse(a)
    inverse = 2 * inverse - inverse @ a @ inverse
    return inverse @ b if left else b @ inverse


def _triangle_inverse(a: torch.Tensor) -> torch.Tensor:
    """Of a lower triangle, row by row, without gradients."""
    a = a.detach()
    n, unit = _rows(a, "the inverse"), _unit(a)
    made: list[torch.Tensor] = []
    for k in range(n):
        row = unit[k : k + 1].expand(*a.shape[:-2], 1, n)
        if made:
            row = row - a[..., k : k + 1, :k] @ torch.cat(made, -2)
        made.append(row / a[..., k : k + 1, k : k + 1])
    return torch.cat(made, -2)


def _cholesky(a: torch.Tensor, *, upper: bool = False, check_errors: bool = False) -> Any:
    a = (a.mT if upper else a).contiguous()
    n, held = _rows(a, "the Cholesky factor"), a.detach()
    columns: list[torch.Tensor] = []
    for k in range(n):
        column = held[..., k : k + 1]
        if columns:
            before = torch.cat(columns, -1)
            column = column - before @ before[..., k : k + 1, :].mT
        column = column / column[..., k : k + 1, :].sqrt()
        columns.append(torch.where(torch.arange(n, device=a.device).unsqueeze(-1) >= k, column, 0.0))
    factor = torch.cat(columns, -1).detach()
    inverse = _triangle_inverse(factor)
    # L + L φ(L⁻¹ dA L⁻ᵀ), φ the lower triangle with half of the diagonal; PyTorch reads both halves of a symmetric matrix alike.
    change = _change(a)
    inner = inverse @ ((change + change.mT) / 2) @ inverse.mT
    made = factor + factor @ (inner.tril() - torch.diag_embed(inner.diagonal(dim1=-2, dim2=-1)) / 2)
    return made.mT if upper else made, torch.zeros(a.shape[:-2], dtype=torch.int32, device=a.device)


def _by_factor(b: torch.Tensor, factor: torch.Tensor, upper: bool = False) -> torch.Tensor:
    """The solution of a system of which the matrix has this Cholesky factor."""
    inverse = _triangular(factor.mT if upper else factor, _unit(factor), upper=False)
    return inverse.mT @ (inverse @ b)


def _householder(a: torch.Tensor, tau: torch.Tensor) -> torch.Tensor:
    """(1 - τ₁v₁v₁ᵀ)(1 - τ₂v₂v₂ᵀ)…, as many columns as there are in a."""
    m, n = int(a.shape[-2]), int(a.shape[-1])
    _rows(a, "the product of reflections")
    made = torch.eye(m, n, dtype=a.dtype, device=a.device).expand(*a.shape[:-2], m, n)
    places = torch.arange(m, device=a.device)
    for k in reversed(range(int(tau.shape[-1]))):
        v = torch.where(places > k, a[..., k], (places == k).to(a.dtype)).unsqueeze(-1)
        made = made - tau[..., k, None, None] * v @ (v.mT @ made)
    return made


def _matrix_exp(a: torch.Tensor) -> torch.Tensor:
    small = a / 2**_HALVINGS
    made = _unit(a) + small / _TERMS
    for k in range(_TERMS - 1, 0, -1):
        made = _unit(a) + small @ made / k
    for _ in range(_HALVINGS):
        made = made @ made
    return made


ALGEBRA: dict[Any, Any] = {
    aten._linalg_det.default: _det,
    aten._linalg_slogdet.default: _slogdet,
    aten.linalg_inv_ex.default: _inv_ex,
    aten.linalg_inv.default: _inverse,
    aten.inverse.default: _inverse,
    aten.linalg_solve.default: lambda a, b, *, left=True: _solve_ex(a, b, left=left)[0],
    aten.linalg_cholesky.default: lambda a, *, upper=False: _cholesky(a, upper=upper)[0],
    aten.cholesky_solve.default: _by_factor,
    aten._linalg_solve_ex.default: _solve_ex,
    aten.linalg_solve_triangular.default: _triangular,
    aten.linalg_cholesky_ex.default: _cholesky,
    aten.linalg_householder_product.default: _householder,
    aten.linalg_matrix_exp.default: _matrix_exp,
}

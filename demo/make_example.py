"""Made demo/example.zarr: a little made-up climate, as CF names it.

    python demo/make_example.py demo/example.zarr

Written with zarr-python 3.1.6 and numcodecs 0.16.6 (zstd). The file is kept to tell what the store holds, not to be run again.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import zarr
from zarr.codecs import ZstdCodec


def main(path: str) -> None:
    root = zarr.create_group(
        path,
        zarr_format=3,
        attributes={
            "title": "A made-up year of monthly surface air temperature",
            "Conventions": "CF-1.11",
            "source": "zarrfs demo",
        },
    )
    month, lat, lon = np.arange(12), np.arange(-87.5, 90, 5), np.arange(0, 360, 5.0)
    season = np.cos(2 * np.pi * (month - 6.5) / 12)[:, None, None]
    phi, lam = np.deg2rad(lat)[None, :, None], np.deg2rad(lon)[None, None, :]
    land = np.sin(2 * lam) + 0.6 * np.cos(3 * lam + 2 * phi)
    kelvin = 300 - 45 * np.sin(phi) ** 2 + 16 * season * np.sin(phi) * (1 + 0.3 * land) + 2 * land
    # A thirty-second of a degree is finer than any thermometer, and packs.
    kelvin = np.round(kelvin * 32) / 32

    def array(name: str, values: np.ndarray[Any, Any], dims: tuple[str, ...], chunks: tuple[int, ...], **attributes: Any) -> None:
        made = root.create_array(
            name,
            shape=values.shape,
            dtype=values.dtype,
            chunks=chunks,
            compressors=[ZstdCodec(level=9)],
            fill_value=np.nan if values.dtype.kind == "f" else 0,
            dimension_names=dims,
            attributes=attributes,
        )
        made[...] = values

    array(
        "time", (month * 30).astype("i4"), ("time",), (12,), standard_name="time", units="days since 2001-01-01", calendar="360_day"
    )
    array("lat", lat, ("lat",), (36,), standard_name="latitude", units="degrees_north")
    array("lon", lon, ("lon",), (72,), standard_name="longitude", units="degrees_east")
    array(
        "air_temperature",
        kelvin.astype("f4"),
        ("time", "lat", "lon"),
        (6, 18, 36),
        standard_name="air_temperature",
        long_name="Monthly mean air temperature at 2 m",
        units="K",
        cell_methods="time: mean",
    )


if __name__ == "__main__":
    main(sys.argv[1])

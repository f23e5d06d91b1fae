"""Codecs: conversion between the elements of a chunk and its stored bytes. Plain functions of values: no store, no waiting."""

"""What a resource declares, and what its handlers are given."""

from __future__ import annotations

import pytest
from starlette.responses import Response
from starlette.types import ASGIApp

from roost.api.framework.bounds import NAME
from roost.api.framework.call import ApiCall
from roost.api.framework.resource import Resource
from roost.api.framework.services import Services
from roost.api.operations import body_of


class Shop:
    """Something that a handler needs."""


class LargerShop(Shop):
    """Something else, though like it."""


async def alone(call: ApiCall) -> ASGIApp:
    return Response()


async def with_a_shop(call: ApiCall, shop: Shop) -> ASGIApp:
    return Response(type(shop).__name__)


async def test_a_handler_is_given_what_it_names_by_type():
    services = Services(Shop(), LargerShop())
    response = await services.given_to(with_a_shop)(None)
    assert isinstance(response, Response)
    assert response.body == b"Shop"
    assert services.given_to(alone) is alone


def test_a_part_that_is_missing_is_noticed_before_the_first_request():
    with pytest.raises(LookupError, match="needs Shop"):
        Services(LargerShop()).given_to(with_a_shop)


def test_operations_are_in_the_order_in_which_they_are_declared():
    resource = Resource()
    resource.post("shops.create", "/roost/v1/shops")(alone)
    resource.get("shops.list", "/roost/v1/shops")(alone)
    assert [operation.name for operation in resource.operations] == ["shops.create", "shops.list"]


def test_what_is_declared_after_a_shape_was_built_is_refused():
    """It would be without these bounds, and nobody would notice."""
    assert body_of("sessions.create").adapter
    with pytest.raises(RuntimeError, match=r"import roost\.api\.operations"):
        Resource(bounds={"ShopCreateParams.name": NAME})

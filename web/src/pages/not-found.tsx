import { Anchor, Text } from "@mantine/core";
import { Link } from "react-router";

import { Page } from "../parts/page";

export function NotFoundPage() {
  return (
    <Page title="Page not found">
      <Text>
        There is no page at this address. <Anchor component={Link} to="/" underline="always">See all sessions.</Anchor>
      </Text>
    </Page>
  );
}
